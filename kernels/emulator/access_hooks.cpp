// What -fsanitize=thread makes a kernel call before each access, here without ThreadSanitizer: the checked build.
//
// Only kernels are compiled that way; this file and the rest of the emulator are not.
#include <cstdint>
#include <cstring>

#include "emulator/block.hpp"
#include "emulator/seam.hpp"

namespace {

void aligned(void* at, size_t bytes, bool write, void* code) {
  securecoll::emulator::on_access(reinterpret_cast<uintptr_t>(at), bytes, write, code);
  const bool in_kernel = securecoll::emulator::current != nullptr;
  if (in_kernel && reinterpret_cast<uintptr_t>(at) % bytes != 0) securecoll::emulator::check_alignment(at, bytes);
}

void unaligned(void* at, size_t bytes, bool write, void* code) {
  securecoll::emulator::on_access(reinterpret_cast<uintptr_t>(at), bytes, write, code);
}

}  // namespace

#define SC_ACCESS_HOOKS(bytes)                                                                                       \
  void __tsan_read##bytes(void* at) { aligned(at, bytes, false, __builtin_return_address(0)); }                      \
  void __tsan_write##bytes(void* at) { aligned(at, bytes, true, __builtin_return_address(0)); }                      \
  void __tsan_volatile_read##bytes(void* at) { aligned(at, bytes, false, __builtin_return_address(0)); }             \
  void __tsan_volatile_write##bytes(void* at) { aligned(at, bytes, true, __builtin_return_address(0)); }             \
  void __tsan_unaligned_read##bytes(void* at) { unaligned(at, bytes, false, __builtin_return_address(0)); }          \
  void __tsan_unaligned_write##bytes(void* at) { unaligned(at, bytes, true, __builtin_return_address(0)); }          \
  void __tsan_unaligned_volatile_read##bytes(void* at) { unaligned(at, bytes, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_volatile_write##bytes(void* at) { unaligned(at, bytes, true, __builtin_return_address(0)); }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

SC_ACCESS_HOOKS(1)
SC_ACCESS_HOOKS(2)
SC_ACCESS_HOOKS(4)
SC_ACCESS_HOOKS(8)
SC_ACCESS_HOOKS(16)

void __tsan_read_range(void* at, size_t bytes) { unaligned(at, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void* at, size_t bytes) { unaligned(at, bytes, true, __builtin_return_address(0)); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  unaligned(const_cast<void*>(from), bytes, false, __builtin_return_address(0));
  unaligned(to, bytes, true, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memset(void* at, int value, size_t bytes) {
  unaligned(at, bytes, true, __builtin_return_address(0));
  return std::memset(at, value, bytes);
}

// The atomics that platform.cuh uses. Their addresses were looked at before.
uint32_t __tsan_atomic32_load(const volatile uint32_t* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
void __tsan_atomic32_store(volatile uint32_t* at, uint32_t v, int) { __atomic_store_n(at, v, __ATOMIC_SEQ_CST); }
uint32_t __tsan_atomic32_fetch_add(volatile uint32_t* at, uint32_t v, int) {
  return __atomic_fetch_add(at, v, __ATOMIC_SEQ_CST);
}
uint32_t __tsan_atomic32_fetch_or(volatile uint32_t* at, uint32_t v, int) {
  return __atomic_fetch_or(at, v, __ATOMIC_SEQ_CST);
}
bool __tsan_atomic32_compare_exchange_strong(volatile uint32_t* at, uint32_t* expected, uint32_t v, int, int) {
  return __atomic_compare_exchange_n(at, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

}  // extern "C"
