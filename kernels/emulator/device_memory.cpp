#include "emulator/device_memory.hpp"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "emulator/text.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#if defined(__x86_64__) && defined(__GLIBC__)
#define SC_PROTECTION_KEYS 1
#endif

namespace securecoll::emulator {
namespace {

constexpr uint8_t kZone = 0xa5;

uintptr_t round_up(uintptr_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

void* reserve(size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return at;
}

// All arenas share one protection key, which opens and closes them for one thread in a few cycles; to change the
// protection of their pages takes milliseconds. Without such keys they are open.
#if defined(SC_PROTECTION_KEYS)
int arena_key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}
int arena_rights() { return arena_key() > 0 ? pkey_get(arena_key()) : 0; }
void set_arena_rights(int rights) {
  if (arena_key() > 0) pkey_set(arena_key(), static_cast<unsigned>(rights));
}
#else
int arena_rights() { return 0; }
void set_arena_rights(int) {}
#endif

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes, uint64_t seed) : bytes_(round_up(bytes + kGranule, 4096)), random_(seed) {
  base_ = reinterpret_cast<uintptr_t>(reserve(bytes_));
#if defined(SC_PROTECTION_KEYS)
  if (arena_key() > 0) pkey_mprotect(reinterpret_cast<void*>(base_), bytes_, PROT_READ | PROT_WRITE, arena_key());
#endif
  live_ = static_cast<uint16_t*>(reserve(bytes_ / kGranule * sizeof(uint16_t)));
  cursor_ = base_;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(base_), bytes_);
#endif
}

DeviceMemory::~DeviceMemory() {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(base_), bytes_);
#endif
  munmap(reinterpret_cast<void*>(base_), bytes_);
  munmap(live_, bytes_ / kGranule * sizeof(uint16_t));
}

DeviceMemory::Access::Access() : rights_before_(arena_rights()) { set_arena_rights(0); }

DeviceMemory::Access::~Access() { set_arena_rights(rights_before_); }

// The first gap at or after `from` that fits, with a red zone on either side. Neighbours share theirs.
uintptr_t DeviceMemory::find_room(size_t rounded, uintptr_t from) const {
  uintptr_t at = round_up(from, kGranule) + kGranule;
  auto next = allocations_.upper_bound(from);
  if (next != allocations_.begin()) {
    const auto& [start, bytes] = *std::prev(next);
    const uintptr_t end = round_up(start + bytes, kGranule);
    if (end + kGranule > at) at = end + kGranule;
  }
  for (; next != allocations_.end() && at + rounded + kGranule > next->first; ++next) {
    at = round_up(next->first + next->second, kGranule) + kGranule;
  }
  return at + rounded + kGranule <= base_ + bytes_ ? at : 0;
}

void DeviceMemory::mark(uintptr_t at, size_t bytes, bool live) {
  size_t granule = (at - base_) / kGranule;
  for (size_t left = bytes; left > 0; granule++) {
    const size_t here = left < kGranule ? left : kGranule;
    __atomic_store_n(&live_[granule], live ? static_cast<uint16_t>(here) : uint16_t{0}, __ATOMIC_RELAXED);
    left -= here;
  }
}

uint64_t DeviceMemory::allocate(size_t bytes) {
  if (bytes == 0 || bytes > bytes_) return 0;
  std::lock_guard lock(mutex_);
  const size_t rounded = round_up(bytes, kGranule);
  uintptr_t at = find_room(rounded, cursor_);
  if (at == 0) at = find_room(rounded, base_);
  if (at == 0) return 0;
  Access access;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(at), bytes);
#else
  std::memset(reinterpret_cast<void*>(at - kGranule), kZone, kGranule);
  std::memset(reinterpret_cast<void*>(at + bytes), kZone, rounded - bytes + kGranule);
#endif
  random_.fill(reinterpret_cast<void*>(at), bytes);
  mark(at, bytes, true);
  allocations_.emplace(at, bytes);
  cursor_ = at + rounded;
  return at;
}

bool DeviceMemory::release(uint64_t at) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(at);
  if (found == allocations_.end()) return false;
  const size_t bytes = found->second;
  Access access;
  random_.fill(reinterpret_cast<void*>(at), bytes);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(at), bytes);
#endif
  mark(at, bytes, false);
  allocations_.erase(found);
  return true;
}

void DeviceMemory::map(const void* host, size_t bytes, bool writable) {
  std::lock_guard lock(mutex_);
  mapped_[reinterpret_cast<uintptr_t>(host)] = {bytes, writable};
}

bool DeviceMemory::unmap(const void* host) {
  std::lock_guard lock(mutex_);
  return mapped_.erase(reinterpret_cast<uintptr_t>(host)) == 1;
}

bool DeviceMemory::holds(uintptr_t at, size_t bytes, bool write) const {
  if (at - base_ < bytes_) {
    size_t granule = (at - base_) / kGranule;
    size_t end = (at - base_) % kGranule + bytes;  // within this granule and those after it
    const size_t last = bytes_ / kGranule;
    for (; granule < last; granule++) {
      const size_t live = __atomic_load_n(&live_[granule], __ATOMIC_RELAXED);
      if (end <= kGranule) return end <= live;
      if (live < kGranule) return false;
      end -= kGranule;
    }
    return false;
  }
  std::lock_guard lock(mutex_);
  const auto next = mapped_.upper_bound(at);
  if (next == mapped_.begin()) return false;
  const auto& [start, mapping] = *std::prev(next);
  if (write && !mapping.writable) return false;
  return at - start <= mapping.bytes && bytes <= mapping.bytes - (at - start);
}

std::string DeviceMemory::describe(uintptr_t at) const {
  if (!contains(at)) return "host memory that is not mapped for that";
  std::lock_guard lock(mutex_);
  const auto next = allocations_.upper_bound(at);
  const size_t after = next == allocations_.end() ? SIZE_MAX : next->first - at;
  if (next != allocations_.begin()) {
    const auto& [start, bytes] = *std::prev(next);
    if (at < start + bytes) return text("byte %zu of an allocation of %zu bytes", size_t{at - start}, bytes);
    const size_t past = at - (start + bytes);
    if (past <= after) return text("%zu bytes past the end of an allocation of %zu bytes", past, bytes);
  }
  if (after != SIZE_MAX) return text("%zu bytes before an allocation of %zu bytes", after, next->second);
  return "device memory that is not allocated";
}

std::string DeviceMemory::zone_damage(uintptr_t from, uintptr_t to, uintptr_t allocation, size_t bytes) {
  auto* const zone = reinterpret_cast<uint8_t*>(from);
  for (size_t i = 0; i < to - from; i++) {
    if (zone[i] == kZone) continue;
    const uintptr_t at = from + i;
    std::memset(zone, kZone, to - from);
    if (at < allocation) return text("%zu bytes before an allocation of %zu bytes", size_t{allocation - at}, bytes);
    return text("%zu bytes past the end of an allocation of %zu bytes", size_t{at - allocation - bytes}, bytes);
  }
  return {};
}

std::string DeviceMemory::damage() {
#if defined(__SANITIZE_ADDRESS__)
  return {};  // the sanitizer has the zones to itself
#else
  std::lock_guard lock(mutex_);
  Access access;
  std::string found;
  for (const auto& [start, bytes] : allocations_) {
    const uintptr_t end = round_up(start + bytes, kGranule) + kGranule;
    const std::string after = zone_damage(start + bytes, end, start, bytes);
    const std::string before = zone_damage(start - kGranule, start, start, bytes);
    if (found.empty()) found = after.empty() ? before : after;
  }
  return found;
#endif
}

}  // namespace securecoll::emulator
