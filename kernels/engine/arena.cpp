#include "engine/arena.hpp"

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/fork.hpp"

namespace securecoll {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kFirstRegion = size_t{64} << 10;  // small, for containers that may lock only this much
constexpr size_t kLargestRegion = size_t{1} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::string describe_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "none" : std::to_string(limit.rlim_cur) + " bytes";
}

// Maps `bytes` (whole pages) between two inaccessible pages, so that no overrun of a neighbour reaches a key. Returns
// null with errno when the pages cannot be had or cannot be protected.
uint8_t* map_region(size_t bytes) {
  const size_t page = page_bytes();
  void* const whole = mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  auto* const region = static_cast<uint8_t*>(whole) + page;
  if (mprotect(region, bytes, PROT_READ | PROT_WRITE) == 0 && madvise(region, bytes, MADV_DONTDUMP) == 0 &&
      madvise(region, bytes, MADV_WIPEONFORK) == 0 && mlock(region, bytes) == 0) {
    return region;
  }
  const int error = errno;
  munmap(whole, bytes + 2 * page);
  errno = error;
  return nullptr;
}

}  // namespace

struct Arena::State {
  std::mutex mutex;
  // Blocks of one rounded size. Secrets have few sizes, so a freed block serves its own size again and is never split.
  struct Size {
    std::vector<uint8_t*> free;
    size_t made = 0;  // free or in use; `free` has room for all, so release() never allocates
  };
  std::unordered_map<size_t, Size> sizes;
  uint8_t* next = nullptr;  // the unused rest of the newest region
  size_t left = 0;
  size_t locked = 0;
  std::atomic<size_t> used{0};
  std::vector<std::pair<uint8_t*, size_t>> regions;

  bool owns(const void* block) const {
    return std::any_of(regions.begin(), regions.end(), [block](const auto& r) {
      return static_cast<const uint8_t*>(block) >= r.first && static_cast<const uint8_t*>(block) < r.first + r.second;
    });
  }

  void grow(size_t bytes) {
    const size_t least = round_up(bytes, page_bytes());
    size_t size = std::max(least, std::min(std::max(locked, kFirstRegion), kLargestRegion));
    uint8_t* region = map_region(size);
    if (region == nullptr && size > least) region = map_region(size = least);  // close to the limit
    if (region == nullptr) {
      throw std::runtime_error("cannot lock " + std::to_string(least) +
                               " bytes of memory for keys: " + std::strerror(errno) +
                               " (locked so far: " + std::to_string(locked) + " bytes, limit: " + describe_limit() +
                               "). Raise the limit with `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd "
                               "unit, or --ulimit memlock=-1 for a container.");
    }
    regions.emplace_back(region, size);
    next = region;
    left = size;
    locked += size;
  }

  uint8_t* take(size_t rounded) {
    Size& size = sizes[rounded];
    if (!size.free.empty()) {
      uint8_t* const block = size.free.back();
      size.free.pop_back();
      return block;
    }
    if (size.free.capacity() == size.made) size.free.reserve(std::max<size_t>(16, 2 * size.made));
    if (left < rounded) grow(rounded);
    uint8_t* const block = next;
    next += rounded;
    left -= rounded;
    ++size.made;
    return block;
  }
};

// Never destroyed: secrets with static storage may be released after any destructor of ours would have run.
Arena& Arena::instance() {
  static Arena* const arena = new Arena();
  return *arena;
}

// The child's arena is made anew, not repaired: the parent's lists name wiped blocks, and its mutex may be held by a
// thread that does not exist here. What it held is left to the child's end.
Arena::Arena() : state_(new State()) {
  call_in_children([] { instance().state_ = new State(); });
}

void* Arena::allocate(size_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() / 2) {
    throw std::runtime_error("a secret of " + std::to_string(bytes) + " bytes is impossible");
  }
  const size_t rounded = round_up(bytes, kAlignment);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  uint8_t* const block = state_->take(rounded);
  state_->used.fetch_add(rounded, std::memory_order_relaxed);
  return block;
}

void Arena::release(void* block, size_t bytes) noexcept {
  if (block == nullptr) return;
  const size_t rounded = round_up(bytes, kAlignment);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->owns(block)) return;
  wipe(block, rounded);
  state_->sizes.find(rounded)->second.free.push_back(static_cast<uint8_t*>(block));
  state_->used.fetch_sub(rounded, std::memory_order_relaxed);
}

size_t Arena::used_bytes() const noexcept { return state_->used.load(std::memory_order_relaxed); }

void wipe(void* p, size_t bytes) noexcept { explicit_bzero(p, bytes); }

Secret::Secret(size_t bytes) {
  if (bytes == 0) return;
  data_ = static_cast<uint8_t*>(Arena::instance().allocate(bytes));
  size_ = bytes;
  generation_ = fork_generation();
}

Secret::Secret(const void* from, size_t bytes) : Secret(bytes) {
  if (bytes != 0) std::memcpy(data_, from, bytes);
}

Secret Secret::random(size_t bytes) {
  Secret secret(bytes);
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = getrandom(secret.data() + done, bytes - done, 0);
    if (got < 0 && errno != EINTR) throw std::runtime_error(std::string("getrandom: ") + std::strerror(errno));
    if (got > 0) done += static_cast<size_t>(got);
  }
  return secret;
}

Secret::Secret(Secret&& o) noexcept { *this = std::move(o); }

Secret& Secret::operator=(Secret&& o) noexcept {
  if (this != &o) {
    erase();
    data_ = std::exchange(o.data_, nullptr);
    size_ = std::exchange(o.size_, 0);
    generation_ = o.generation_;
  }
  return *this;
}

Secret::~Secret() { erase(); }

uint8_t* Secret::data() {
  if (data_ != nullptr && generation_ != fork_generation()) {
    throw std::runtime_error("secrets do not survive a fork: read the key, or join the group, again in the child");
  }
  return data_;
}

void Secret::erase() noexcept {
  if (data_ == nullptr) return;
  if (generation_ == fork_generation()) Arena::instance().release(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace securecoll
