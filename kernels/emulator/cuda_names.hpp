// CUDA's own names, for a host compiler: what a kernel finds in the language on a GPU, it finds here in the emulator.
//
// Only cuda/platform.cuh includes this. Names that a kernel needs and that are missing do not compile, rather than
// behave in some other way; `__shared__` is missing on purpose, since only SC_SHARED memory is poisoned and checked.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulator/seam.hpp"

#define __device__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace securecoll::emulator {

inline unsigned lane() { return current->thread.x & 31; }

template <class T>
T shuffle(uint32_t mask, T value, uint32_t source, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 or 8 bytes");
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = warp_shuffle(mask, word, source, site);
  std::memcpy(&value, &word, sizeof value);
  return value;
}

template <class To, class From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace securecoll::emulator

#define threadIdx (::securecoll::emulator::current->thread)
#define blockIdx (::securecoll::emulator::current->block)
#define blockDim (::securecoll::emulator::current->block_size)
#define gridDim (::securecoll::emulator::current->grid_size)

// The default arguments are evaluated where the call stands, so they name its source line.
#define SC_SITE_PARAMETERS const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(SC_SITE_PARAMETERS) { ::securecoll::emulator::block_barrier({file, line}); }

inline void __syncwarp(unsigned mask = 0xffffffffu, SC_SITE_PARAMETERS) {
  ::securecoll::emulator::warp_barrier(mask, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SC_SITE_PARAMETERS) {
  return ::securecoll::emulator::warp_ballot(mask, predicate != 0, {file, line});
}

// Shuffles within groups of `width` lanes, a power of two. A source outside of the group means the lane itself, but
// for
// __shfl_sync, where it wraps.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, SC_SITE_PARAMETERS) {
  const unsigned first = ::securecoll::emulator::lane() & ~(width - 1u);
  return ::securecoll::emulator::shuffle(mask, value, first | (source & (width - 1u)), {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, SC_SITE_PARAMETERS) {
  const unsigned self = ::securecoll::emulator::lane();
  const unsigned source = self ^ lanes;
  // Reading from an earlier group is allowed, from a later one is not.
  const bool inside = source < (self & ~(width - 1u)) + width;
  return ::securecoll::emulator::shuffle(mask, value, inside ? source : self, {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, SC_SITE_PARAMETERS) {
  const unsigned self = ::securecoll::emulator::lane();
  const bool inside = (self & (width - 1u)) >= by;
  return ::securecoll::emulator::shuffle(mask, value, inside ? self - by : self, {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, SC_SITE_PARAMETERS) {
  const unsigned self = ::securecoll::emulator::lane();
  const bool inside = (self & (width - 1u)) + by < static_cast<unsigned>(width);
  return ::securecoll::emulator::shuffle(mask, value, inside ? self + by : self, {file, line});
}

// Each nibble of the selector picks one of the eight bytes of `high:low`; its top bit asks for that byte's sign
// instead.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned pick = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(both >> (8 * (pick & 7))) & 0xff;
    if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline float __uint_as_float(unsigned x) { return ::securecoll::emulator::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return ::securecoll::emulator::bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return ::securecoll::emulator::bits<double>(x); }
inline long long __double_as_longlong(double x) { return ::securecoll::emulator::bits<long long>(x); }
