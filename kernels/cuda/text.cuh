// Blocks of 16 bytes in global memory: sealed text, which is aligned, and plaintext, which need not be.
#pragma once
#include "platform.cuh"

namespace securecoll::cuda {

constexpr u32 kBlockBytes = 16;

// An address as the host hands it over.
template <class T>
SC_DEVICE T* pointer_to(u64 address) {
  return reinterpret_cast<T*>(address);
}

SC_DEVICE u32 first_bytes_of_word(u32 word, u32 n) { return n >= 4 ? word : word & ((1u << 8 * n) - 1); }

// How many of `n` bytes lie behind the first `start`.
SC_DEVICE u32 beyond(u32 n, u32 start) { return n > start ? n - start : 0; }

// The first `n` bytes of a block, at most 16, zeros behind them.
SC_DEVICE uint4 first_bytes(uint4 block, u32 n) {
  return make_uint4(first_bytes_of_word(block.x, n), first_bytes_of_word(block.y, beyond(n, 4)),
                    first_bytes_of_word(block.z, beyond(n, 8)), first_bytes_of_word(block.w, beyond(n, 12)));
}

// Blocks by words of W, to which `at` is aligned: whole ones, or by bytes their first `n`.
template <class W>
SC_DEVICE u32 load_word(u64 at, u32 n) {
  u32 word = 0;
  SC_UNROLL for (u32 i = 0; i < 4; i += sizeof(W)) {
    if (i < n) word |= static_cast<u32>(*pointer_to<const volatile W>(at + i)) << 8 * i;
  }
  return word;
}
template <class W>
SC_DEVICE uint4 load_by(u64 at, u32 n) {
  return make_uint4(load_word<W>(at, n), load_word<W>(at + 4, beyond(n, 4)), load_word<W>(at + 8, beyond(n, 8)),
                    load_word<W>(at + 12, beyond(n, 12)));
}
template <class W>
SC_DEVICE void store_word(u64 at, u32 word, u32 n) {
  SC_UNROLL for (u32 i = 0; i < 4; i += sizeof(W)) {
    if (i < n) *pointer_to<W>(at + i) = static_cast<W>(word >> 8 * i);
  }
}
template <class W>
SC_DEVICE void store_by(u64 at, uint4 block, u32 n) {
  store_word<W>(at, block.x, n);
  store_word<W>(at + 4, block.y, beyond(n, 4));
  store_word<W>(at + 8, block.z, beyond(n, 8));
  store_word<W>(at + 12, block.w, beyond(n, 12));
}

// The `n` bytes at `at`, at most 16, zeros behind them. Each byte is read exactly once, and no other is touched.
__device__ __noinline__ inline uint4 load_bytes(u64 at, u32 n) {
  if (n != kBlockBytes) return load_by<u8>(at, n);
  if (at % 16 == 0) return load_stream(pointer_to<const uint4>(at));
  if (at % 4 == 0) return load_by<u32>(at, n);
  if (at % 2 == 0) return load_by<u16>(at, n);
  return load_by<u8>(at, n);
}

// Stores the first `n` bytes of a block, at most 16.
__device__ __noinline__ inline void store_bytes(u64 at, uint4 block, u32 n) {
  if (n != kBlockBytes) return store_by<u8>(at, block, n);
  if (at % 16 == 0) return store_stream(pointer_to<uint4>(at), block);
  if (at % 4 == 0) return store_by<u32>(at, block, n);
  if (at % 2 == 0) return store_by<u16>(at, block, n);
  store_by<u8>(at, block, n);
}

}  // namespace securecoll::cuda
