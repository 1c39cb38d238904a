// The only file that knows which compiler is looking: nvcc, NVRTC (which brings no standard headers), or a C++
// compiler for the host, where kernels/emulator stands in for the GPU.
//
// Kernels use CUDA's own names for threads, barriers, shuffles and integer intrinsics (on the host they come from
// kernels/emulator/cuda_names.hpp), and the names below for everything else.
//
//   SC_KERNEL(sc_twice, TwiceArgs, 256, 1) {
//     SC_SHARED(Scratch, scratch);
//     ...
//   }
#pragma once

#if defined(__CUDACC__)
#define SC_ON_GPU 1
#endif

#if defined(__CUDACC_RTC__)
#include "fixed_width.cuh"
#else
#include <cstdint>
#endif

#if !defined(SC_ON_GPU)
#include "emulator/cuda_names.hpp"
#endif

namespace securecoll::cuda {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i32 = int32_t;

#define SC_DEVICE __device__ __forceinline__

// A place in the CTA's shared memory window: a byte offset, 32 bits wide.
using SharedAddress = u32;

#if defined(SC_ON_GPU)

#define SC_UNROLL _Pragma("unroll")
#define SC_UNROLL_NONE _Pragma("unroll 1")

// A kernel has one parameter, `args`, by value; it stays in constant memory.
#define SC_KERNEL(name, Args, threads_per_cta, min_ctas_per_sm)                  \
  extern "C" __global__ void __launch_bounds__(threads_per_cta, min_ctas_per_sm) \
      name(const __grid_constant__ Args args)

// The launch's dynamic shared memory, as a reference. Its content is undefined when the kernel starts. It does not
// begin where the window does: the system keeps the first KiB.
extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
#define SC_SHARED(Type, name) Type& name = *reinterpret_cast<Type*>(::securecoll::cuda::dynamic_shared_memory)

SC_DEVICE SharedAddress shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

// Loads and stores of 16 bytes that are used once and need no place in the caches. A load reads its memory exactly
// once, whatever the compiler thinks of it, which is what memory that others can write asks for. Loads and stores of
// this kind keep their order among themselves, and not with plain ones.
SC_DEVICE uint4 load_stream(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
SC_DEVICE void store_stream(uint4* at, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

SC_DEVICE u32 load_acquire_system(const u32* at) {
  u32 v;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}
SC_DEVICE void store_release_system(u32* at, u32 v) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}

// Device-wide, relaxed: they order nothing by themselves. Each returns what was there before.
SC_DEVICE u32 atomic_add(u32* at, u32 v) { return atomicAdd(at, v); }
SC_DEVICE u32 atomic_or(u32* at, u32 v) { return atomicOr(at, v); }
SC_DEVICE u32 atomic_max(u32* at, u32 v) { return atomicMax(at, v); }
SC_DEVICE void threadfence() { __threadfence(); }

// c += popcount(A and B) over one warp: A is 16 rows of 256 bits, B 8 columns of 256 bits, fragments as PTX lays them
// out for mma.m16n8k256. All 32 lanes take part.
SC_DEVICE void binary_mma(int (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Stops the kernel and makes its stream, and all of the context, fail.
SC_DEVICE void trap() { __trap(); }

// The offset is added after the conversion, where it becomes part of the load instruction.
template <int OFFSET>
SC_DEVICE u32 load_shared(SharedAddress at) {
  return *reinterpret_cast<const u32*>(static_cast<const u8*>(__cvta_shared_to_generic(at)) + OFFSET);
}

#else  // the emulator

#define SC_UNROLL
#define SC_UNROLL_NONE

#define SC_KERNEL(name, Args, threads_per_cta, min_ctas_per_sm)                                                      \
  static void name##_body(const Args& args);                                                                         \
  static const ::securecoll::emulator::Kernel name##_kernel(                                                         \
      #name, sizeof(Args), threads_per_cta, [](const void* args) { name##_body(*static_cast<const Args*>(args)); }); \
  static void name##_body([[maybe_unused]] const Args& args)

#define SC_SHARED(Type, name) \
  Type& name = *reinterpret_cast<Type*>(::securecoll::emulator::shared_memory(sizeof(Type), alignof(Type)))

SC_DEVICE SharedAddress shared_address(const void* at) { return ::securecoll::emulator::shared_offset(at); }

SC_DEVICE uint4 load_stream(const uint4* at) {
  ::securecoll::emulator::check_alignment(at, 16);
  return *at;
}
SC_DEVICE void store_stream(uint4* at, uint4 v) {
  ::securecoll::emulator::check_alignment(at, 16);
  *at = v;
}

SC_DEVICE u32 load_acquire_system(const u32* at) {
  ::securecoll::emulator::before_poll(at, sizeof(u32));
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
SC_DEVICE void store_release_system(u32* at, u32 v) {
  ::securecoll::emulator::before_atomic(at, sizeof(u32));
  __atomic_store_n(at, v, __ATOMIC_RELEASE);
}

SC_DEVICE u32 atomic_add(u32* at, u32 v) {
  ::securecoll::emulator::before_atomic(at, sizeof(u32));
  return __atomic_fetch_add(at, v, __ATOMIC_RELAXED);
}
SC_DEVICE u32 atomic_or(u32* at, u32 v) {
  ::securecoll::emulator::before_atomic(at, sizeof(u32));
  return __atomic_fetch_or(at, v, __ATOMIC_RELAXED);
}
SC_DEVICE u32 atomic_max(u32* at, u32 v) {
  ::securecoll::emulator::before_atomic(at, sizeof(u32));
  u32 old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old < v && !__atomic_compare_exchange_n(at, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
SC_DEVICE void threadfence() { ::securecoll::emulator::threadfence(); }

SC_DEVICE void binary_mma(int (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  ::securecoll::emulator::binary_mma(c, a, b);
}

SC_DEVICE void trap() { ::securecoll::emulator::trap(); }

template <int OFFSET>
SC_DEVICE u32 load_shared(SharedAddress at) {
  return *reinterpret_cast<const u32*>(::securecoll::emulator::shared_window() + at + OFFSET);
}

#endif

// Look-ups in a table of 256 rows that is replicated for each lane, so that lane l only ever touches bank l: no bank
// conflicts, and no timing that depends on the index. Two tables lie side by side: row stride 256 bytes, table stride
// 128, lane stride 4. The base is a multiple of 64 KiB in the shared window, so bytes 2 and 3 of an address are the
// base's, byte 1 is the index, byte 0 the lane's, and one byte permutation makes the whole.
SC_DEVICE SharedAddress table_lane(SharedAddress base, u32 lane) { return base + lane * 4; }

template <int BYTE, int TABLE>
SC_DEVICE u32 table_load(u32 word, SharedAddress lane_base) {
  static_assert(BYTE >= 0 && BYTE < 4 && (TABLE == 0 || TABLE == 1));
  return load_shared<TABLE * 128>(__byte_perm(word, lane_base, 0x7604u | BYTE << 4));
}

}  // namespace securecoll::cuda
