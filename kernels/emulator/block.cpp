#include "emulator/block.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <new>
#include <tuple>

#include "emulator/module.hpp"
#include "emulator/text.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace securecoll::emulator {

__thread ThreadView* current = nullptr;

namespace {

#if defined(SC_EMULATOR_RACE)
constexpr bool kEveryAccessIsSeen = true;
#else
constexpr bool kEveryAccessIsSeen = false;
#endif

// A block's shared memory window, aligned as on a GPU, where it starts at address 0. The system keeps the first KiB,
// so a kernel that needs a stricter alignment has to make it itself, here as there.
constexpr size_t kWindowAlignment = 64 << 10;
constexpr size_t kWindowBytes = 256 << 10;
constexpr size_t kReservedBytes = 1 << 10;
constexpr size_t kZoneBytes = 256;  // behind the launch's shared memory, to notice an overrun
constexpr uint8_t kZone = 0xa5;
static_assert(kReservedBytes + kMaxSharedBytes + kZoneBytes <= kWindowBytes);

const char* file_name(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

std::string name(Site site) { return text("%s:%d", file_name(site.file), site.line); }

bool same(Site a, Site b) { return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0); }

unsigned lowest(uint32_t mask) { return static_cast<unsigned>(__builtin_ctz(mask)); }

}  // namespace

void Block::ReadySet::clear() {
  std::memset(words_, 0, sizeof words_);
  count_ = 0;
}

void Block::ReadySet::add(unsigned number) {
  words_[number / 64] |= uint64_t{1} << number % 64;
  count_++;
}

void Block::ReadySet::remove(unsigned number) {
  words_[number / 64] &= ~(uint64_t{1} << number % 64);
  count_--;
}

unsigned Block::ReadySet::next(unsigned number) const {
  constexpr unsigned kWords = kMaxThreads / 64;
  unsigned at = number / 64;
  uint64_t word = words_[at] & ~uint64_t{0} << number % 64;
  while (word == 0) {
    at = (at + 1) % kWords;
    word = words_[at];
  }
  return at * 64 + static_cast<unsigned>(__builtin_ctzll(word));
}

unsigned Block::ReadySet::previous(unsigned number) const {
  constexpr unsigned kWords = kMaxThreads / 64;
  unsigned at = number / 64;
  uint64_t word = words_[at] & ~uint64_t{0} >> (63 - number % 64);
  while (word == 0) {
    at = (at + kWords - 1) % kWords;
    word = words_[at];
  }
  return at * 64 + 63 - static_cast<unsigned>(__builtin_clzll(word));
}

Block::Block() {
  window_whole_ = static_cast<uint8_t*>(mmap(nullptr, kWindowBytes + kWindowAlignment, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (window_whole_ == MAP_FAILED) throw std::bad_alloc();
  window_ = window_whole_ + (-reinterpret_cast<uintptr_t>(window_whole_) & (kWindowAlignment - 1));
}

Block::~Block() {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(window_, kWindowBytes);
#endif
  munmap(window_whole_, kWindowBytes + kWindowAlignment);
}

void Block::start(Launch& launch, unsigned number) {
  const LaunchRequest& request = launch.request;
  launch_ = &launch;
  number_ = number;
  size_ = live_ = request.threads;
  at_barrier_ = 0;
  phase_ = 0;
  polls_ = 0;
  progress_seen_ = 0;
  readings_.clear();
  // Neighbouring blocks see different garbage and run in different orders.
  random_ = Random(request.seed * kMaxThreads + number);
  position_ = request.order == Order::reversed ? size_ - 1 : 0;

#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(window_, kWindowBytes);
  ASAN_UNPOISON_MEMORY_REGION(window_ + kReservedBytes, request.shared_bytes);
#else
  std::memset(window_ + kReservedBytes + request.shared_bytes, kZone, kZoneBytes);
#endif
  random_.fill(window_ + kReservedBytes, request.shared_bytes);
  if (kEveryAccessIsSeen) races_.begin(size_, kReservedBytes + request.shared_bytes);

  while (threads_.size() < size_) {
    threads_.push_back(std::make_unique<Thread>(this, static_cast<unsigned>(threads_.size())));
  }
  warps_.assign((size_ + 31) / 32, Warp{});
  if (size_ % 32 != 0) warps_.back().exited = ~0u << size_ % 32;
  ready_.clear();
  for (unsigned i = 0; i < size_; i++) {
    Thread& thread = *threads_[i];
    thread.thread = {i, 0, 0};
    thread.block = {number, 0, 0};
    thread.block_size = {size_, 1, 1};
    thread.grid_size = {request.blocks, 1, 1};
    thread.window = window_;
    thread.state = State::ready;
    thread.fiber.prepare(&Block::thread_main);
    ready_.add(i);
  }
  release_to(&start_place_);
}

void Block::run(Launch& launch, unsigned number) {
  start(launch, number);
  while (live_ > 0 && !launch.failed()) {
    if (ready_.empty()) {
      launch.fail(text("%s, block %u: deadlock: ", launch.request.kernel->name, number) + waiting());
      break;
    }
    Thread& thread = *threads_[pick()];
    current = &thread;
    thread.fiber.resume();
  }
  current = nullptr;
#if !defined(__SANITIZE_ADDRESS__)
  const uint8_t* const zone = window_ + kReservedBytes + launch.request.shared_bytes;
  for (size_t i = 0; i < kZoneBytes; i++) {
    if (zone[i] == kZone) continue;
    launch.fail(text("%s, block %u: wrote %zu bytes past the end of its %zu bytes of shared memory",
                     launch.request.kernel->name, number, i, launch.request.shared_bytes));
    break;
  }
#endif
}

unsigned Block::pick() {
  switch (launch_->request.order) {
    case Order::in_turn: {
      const unsigned number = ready_.next(position_);
      position_ = (number + 1) % size_;
      return number;
    }
    case Order::reversed: {
      const unsigned number = ready_.previous(position_);
      position_ = (number + size_ - 1) % size_;
      return number;
    }
    case Order::random:
      break;
  }
  return ready_.next(random_.below(size_));
}

void Block::thread_main() {
  Thread& self = running();
  Block& block = *self.block_of;
  acquire_from(&block.start_place_);
  block.launch_->request.kernel->body(block.launch_->request.args);

  release_to(&block.launch_->end_place);
  self.state = State::exited;
  block.ready_.remove(self.number);
  block.live_--;
  block.launch_->progress();
  // Those who wait for all threads, or for all lanes, wait for those that are left.
  if (block.live_ > 0 && block.at_barrier_ == block.live_) block.leave_barrier();
  Warp& warp = block.warps_[self.number / 32];
  const uint32_t bit = 1u << self.number % 32;
  warp.exited |= bit;
  for (uint32_t waiting = warp.waiting; waiting != 0; waiting &= warp.waiting) {
    Thread& other = *block.threads_[(self.number & ~31u) + lowest(waiting)];
    if ((other.mask & bit) && (other.mask & ~warp.exited & ~warp.waiting) == 0) block.complete(other);
    waiting &= ~(1u << other.number % 32);
  }
  self.fiber.finish();
}

// Called on a fiber: the launch ends here.
void Block::fail(const std::string& what) {
  Thread& self = running();
  launch_->fail(text("%s, block %u, thread %u: ", launch_->request.kernel->name, number_, self.number) + what);
  release_to(&launch_->end_place);
  self.fiber.finish();
}

void Block::wait(State state) {
  Thread& self = running();
  self.state = state;
  ready_.remove(self.number);
  self.fiber.pause();
}

// Stays ready, and lets others go first.
void Block::step_aside() { running().fiber.pause(); }

void Block::wake(Thread& thread) {
  thread.state = State::ready;
  ready_.add(thread.number);
}

void Block::poll(const void* at) {
  if (launch_->progress_count() != progress_seen_ || polls_ == 0) {
    progress_seen_ = launch_->progress_count();
    progress_at_ = std::chrono::steady_clock::now();
  }
  polls_++;
  if (polls_ % 256 == 0) {
    const std::chrono::duration<double> still = std::chrono::steady_clock::now() - progress_at_;
    if (still.count() > launch_->request.patience) {
      const std::string others = waiting();
      fail(text("deadlock: polls %s, and nothing has moved for %.1f s",
                launch_->memory.describe(reinterpret_cast<uintptr_t>(at)).c_str(), still.count()) +
           (others.empty() ? "" : "; ") + others);
    }
  }
  if (ready_.count() == 1 || polls_ % 16 == 0) sched_yield();
  step_aside();
}

void Block::leave_barrier() {
  for (unsigned i = 0; i < size_; i++) {
    if (threads_[i]->state == State::at_barrier) wake(*threads_[i]);
  }
  at_barrier_ = 0;
  phase_++;
  launch_->progress();
  if (kEveryAccessIsSeen) races_.block_barrier();
}

void Block::operate(Operation operation, uint32_t mask, Site site) {
  Thread& self = running();
  Warp& warp = warps_[self.number / 32];
  const uint32_t bit = 1u << self.number % 32;
  if (!(mask & bit)) fail(text("%s: the mask %08x leaves the calling lane out", name(site).c_str(), mask));
  self.operation = operation;
  self.mask = mask;
  self.site = site;
  if (operation == Operation::barrier) release_to(&warp);
  if ((mask & ~warp.exited & ~warp.waiting & ~bit) != 0) {
    warp.waiting |= bit;
    wait(State::in_warp_operation);
  } else {
    complete(self);
    if (launch_->request.order == Order::random) step_aside();
  }
  if (operation == Operation::barrier) acquire_from(&warp);
}

// All lanes of `last`'s mask are there: gives each its result and lets it go on.
void Block::complete(Thread& last) {
  const unsigned first = last.number & ~31u;
  Warp& warp = warps_[first / 32];
  const uint32_t mask = last.mask;
  const uint32_t present = mask & ~warp.exited;
  uint32_t ballot = 0;
  for (uint32_t left = present; left != 0; left &= left - 1) {
    const unsigned lane = lowest(left);
    Thread& thread = *threads_[first + lane];
    if (thread.operation != last.operation || thread.mask != mask || !same(thread.site, last.site)) {
      fail(
          text("divergence: in the warp operation at %s with mask %08x, while thread %u is in the one at %s with "
               "mask %08x",
               name(last.site).c_str(), mask, thread.number, name(thread.site).c_str(), thread.mask));
    }
    ballot |= static_cast<uint32_t>(thread.value != 0) << lane;
  }
  switch (last.operation) {
    case Operation::barrier:
      if (kEveryAccessIsSeen && !races_.warp_barrier(first, present)) {
        fail("more warp barriers between two block barriers than can be counted");
      }
      break;
    case Operation::ballot:
      for (uint32_t left = present; left != 0; left &= left - 1) threads_[first + lowest(left)]->value = ballot;
      break;
    case Operation::shuffle: {
      uint64_t given[32];
      for (uint32_t left = present; left != 0; left &= left - 1) {
        given[lowest(left)] = threads_[first + lowest(left)]->value;
      }
      for (uint32_t left = present; left != 0; left &= left - 1) {
        Thread& thread = *threads_[first + lowest(left)];
        if (!(present >> thread.source & 1)) {
          fail(text("%s: thread %u reads from lane %u, which does not take part", name(last.site).c_str(),
                    thread.number, thread.source));
        }
        thread.value = given[thread.source];
      }
      break;
    }
    case Operation::binary_mma:
      if (present != ~0u) fail(text("binary_mma with lanes %08x of 32", present));
      multiply(first);
      break;
  }
  for (uint32_t left = warp.waiting & present; left != 0; left &= left - 1) wake(*threads_[first + lowest(left)]);
  warp.waiting &= ~present;
}

// Fragments as PTX lays them out for mma.m16n8k256 with .b1 operands. With lane = 4 * group + member: `a` holds rows
// group and group + 8, bits 32 * member and 128 + 32 * member on; `b` column group, the same bits; the result rows
// group and group + 8, columns 2 * member and 2 * member + 1.
void Block::multiply(unsigned first) {
  uint64_t rows[16][4];
  uint64_t columns[8][4];
  for (unsigned lane = 0; lane < 32; lane++) {
    const Thread& thread = *threads_[first + lane];
    const unsigned group = lane / 4;
    const unsigned member = lane % 4;
    rows[group][member] = static_cast<uint64_t>(thread.a[2]) << 32 | thread.a[0];
    rows[group + 8][member] = static_cast<uint64_t>(thread.a[3]) << 32 | thread.a[1];
    columns[group][member] = static_cast<uint64_t>(thread.b[1]) << 32 | thread.b[0];
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    Thread& thread = *threads_[first + lane];
    for (unsigned i = 0; i < 4; i++) {
      const uint64_t* const row = rows[lane / 4 + 8 * (i / 2)];
      const uint64_t* const column = columns[2 * (lane % 4) + i % 2];
      int ones = 0;
      for (unsigned k = 0; k < 4; k++) ones += __builtin_popcountll(row[k] & column[k]);
      thread.product[i] = ones;
    }
  }
}

// Which threads wait where, one clause for each place.
std::string Block::waiting() const {
  struct Group {
    unsigned count = 0;
    unsigned example = 0;
    uint32_t missing = 0;
  };
  std::map<std::tuple<State, std::string, uint32_t>, Group> groups;
  for (unsigned i = 0; i < size_; i++) {
    const Thread& thread = *threads_[i];
    if (thread.state == State::exited || thread.state == State::ready) continue;
    const uint32_t mask = thread.state == State::in_warp_operation ? thread.mask : 0;
    Group& group = groups[{thread.state, name(thread.site), mask}];
    if (group.count++ == 0) group.example = i;
    group.missing = mask & ~warps_[i / 32].waiting & ~warps_[i / 32].exited;
  }
  std::string all;
  for (const auto& [key, group] : groups) {
    const auto& [state, site, mask] = key;
    if (!all.empty()) all += "; ";
    all += text("%u threads wait, thread %u the first, ", group.count, group.example);
    if (state == State::at_barrier) all += "in __syncthreads at " + site;
    if (state == State::in_warp_operation) {
      all += text("in the warp operation at %s for lanes %08x", site.c_str(), group.missing);
    }
  }
  return all;
}

std::string Block::where(const void* code) const {
  if (code == nullptr) return {};
  Dl_info info{};
  if (dladdr(code, &info) == 0) return {};
  // One less than where the call returns to lies in the line that accessed.
  const auto offset = reinterpret_cast<uintptr_t>(code) - reinterpret_cast<uintptr_t>(info.dli_fbase) - 1;
  return text(" (addr2line -ie %s %#zx)", info.dli_fname, size_t{offset});
}

void Block::check_shared(size_t offset, size_t bytes, bool write, const void* code) {
  const unsigned self = running().number;
  const char* const verb = write ? "writes" : "reads";
  const size_t size = launch_->request.shared_bytes;
  if (offset < kReservedBytes || offset - kReservedBytes + bytes > size) {
    fail(text("%s %zu bytes at %td of %zu bytes of shared memory%s", verb, bytes,
              static_cast<ptrdiff_t>(offset - kReservedBytes), size, where(code).c_str()));
  }
  using Finding = RaceChecker::Finding;
  const Finding found = races_.access(self, offset, bytes, write);
  if (found.kind == Finding::Kind::none) return;
  const size_t at = found.offset - kReservedBytes;
  if (found.kind == Finding::Kind::unwritten) {
    fail(text("reads byte %zu of shared memory, which was never written%s", at, where(code).c_str()));
  }
  const std::string other =
      found.other == RaceChecker::kSeveral ? "threads of several warps" : text("thread %u", found.other);
  fail(text("race: %s byte %zu of shared memory, which %s %s with no barrier in between%s", verb, at, other.c_str(),
            found.kind == Finding::Kind::write_after_read ? "read" : "wrote", where(code).c_str()));
}

void Block::check_memory(uintptr_t at, size_t bytes, bool write, const void* code) {
  const Thread& self = running();
  const size_t offset = at - reinterpret_cast<uintptr_t>(window_);
  if (offset < kWindowBytes) return check_shared(offset, bytes, write, code);
  if (self.fiber.owns(at, bytes) || launch_->memory.holds(at, bytes, write)) return;
  const auto inside = [at, bytes](const void* start, size_t size) {
    const size_t distance = at - reinterpret_cast<uintptr_t>(start);
    return distance < size && bytes <= size - distance;
  };
  if (!write && inside(launch_->request.args, launch_->request.kernel->args_bytes)) return;
  if (inside(static_cast<const ThreadView*>(&self), sizeof(ThreadView)) || inside(&current, sizeof current)) return;
  if (module_holds(at, bytes)) return;
  fail(text("%s %zu bytes at %s%s", write ? "writes" : "reads", bytes, launch_->memory.describe(at).c_str(),
            where(code).c_str()));
}

// The seam that kernels call.

uint8_t* shared_memory(size_t bytes, size_t alignment) {
  Block& block = *Block::running().block_of;
  const size_t has = block.launch_->request.shared_bytes;
  if (bytes > has) block.fail(text("SC_SHARED needs %zu bytes, and the launch gave %zu", bytes, has));
  if (alignment > kReservedBytes) block.fail(text("SC_SHARED memory is not aligned to %zu bytes", alignment));
  return block.window_ + kReservedBytes;
}

uint32_t shared_offset(const void* at) {
  Block& block = *Block::running().block_of;
  const size_t offset = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(block.window_);
  if (offset >= kWindowBytes) block.fail("shared_address of what is not in shared memory");
  return static_cast<uint32_t>(offset);
}

void check_alignment(const void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes == 0) return;
  Block& block = *Block::running().block_of;
  block.fail(text("misaligned access of %zu bytes at %s", bytes,
                  block.launch_->memory.describe(reinterpret_cast<uintptr_t>(at)).c_str()));
}

void on_access(uintptr_t at, size_t bytes, bool write, const void* code) {
  if (current == nullptr || bytes == 0) return;
  Block::running().block_of->check_memory(at, bytes, write, code);
}

void before_atomic(const void* at, size_t bytes) {
  check_alignment(at, bytes);
  Block& block = *Block::running().block_of;
  const auto address = reinterpret_cast<uintptr_t>(at);
  // Atomics are no races; only where they go is looked at.
  if (kEveryAccessIsSeen && address - reinterpret_cast<uintptr_t>(block.window_) >= kWindowBytes) {
    block.check_memory(address, bytes, true, nullptr);
  }
  block.launch_->progress();
  Block::running().fences.on_atomic(const_cast<void*>(at), block.readings_);
  if (block.launch_->request.order == Order::random && block.random_.one_in(2)) block.step_aside();
}

void before_poll(const void* at, size_t bytes) {
  check_alignment(at, bytes);
  Block& block = *Block::running().block_of;
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (kEveryAccessIsSeen && address - reinterpret_cast<uintptr_t>(block.window_) >= kWindowBytes) {
    block.check_memory(address, bytes, false, nullptr);
  }
  block.poll(at);
}

void threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  Block::Thread& self = Block::running();
  self.fences.on_fence(self.block_of->readings_);
}

void trap() { Block::running().block_of->fail("trap"); }

void block_barrier(Site site) {
  Block::Thread& self = Block::running();
  Block& block = *self.block_of;
  self.site = site;
  if (block.at_barrier_ == 0) block.first_at_barrier_ = &self;
  const Block::Thread& first = *block.first_at_barrier_;
  if (!same(site, first.site)) {
    block.fail(text("divergence: in __syncthreads at %s, while thread %u is in the one at %s", name(site).c_str(),
                    first.number, name(first.site).c_str()));
  }
  // Two places in turn, so that whoever leaves late is not ordered after those who have come again.
  char* const place = &block.phase_places_[block.phase_ % 2];
  release_to(place);
  if (++block.at_barrier_ < block.live_) {
    block.wait(Block::State::at_barrier);
  } else {
    block.leave_barrier();
    if (block.launch_->request.order == Order::random) block.step_aside();
  }
  acquire_from(place);
}

void warp_barrier(uint32_t mask, Site site) {
  Block::running().block_of->operate(Block::Operation::barrier, mask, site);
}

uint32_t warp_ballot(uint32_t mask, bool vote, Site site) {
  Block::Thread& self = Block::running();
  self.value = vote;
  self.block_of->operate(Block::Operation::ballot, mask, site);
  return static_cast<uint32_t>(self.value);
}

uint64_t warp_shuffle(uint32_t mask, uint64_t value, uint32_t source, Site site) {
  Block::Thread& self = Block::running();
  self.value = value;
  self.source = source % 32;
  self.block_of->operate(Block::Operation::shuffle, mask, site);
  return self.value;
}

void binary_mma(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Block::Thread& self = Block::running();
  std::memcpy(self.a, a, sizeof self.a);
  std::memcpy(self.b, b, sizeof self.b);
  self.block_of->operate(Block::Operation::binary_mma, ~0u, {"binary_mma", 0});
  for (int i = 0; i < 4; i++) c[i] += self.product[i];
}

}  // namespace securecoll::emulator
