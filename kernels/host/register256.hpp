// A 256-bit register and what the kernels of all AEADs do with it, for a vector class to inherit: AVX2, VAES.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "host/aead_sets.hpp"

namespace securecoll::host {
namespace {

struct Register256 {
  using Reg = __m256i;
  static constexpr int kBlocks = 2;

  static SC_INLINE Reg load_private(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i_u*>(p)); }
  static SC_INLINE Reg bxor(Reg a, Reg b) { return _mm256_xor_si256(a, b); }
  static SC_INLINE Reg aes_round(Reg x, Reg key) { return _mm256_aesenc_epi128(x, key); }
  // The exclusive or of all blocks.
  static SC_INLINE __m128i fold(Reg x) {
    return _mm_xor_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  }

  static SC_INLINE Reg load(const uint8_t* p) { return *reinterpret_cast<const volatile __m256i_u*>(p); }
  static SC_INLINE void store(uint8_t* p, Reg x) { *reinterpret_cast<volatile __m256i_u*>(p) = x; }
  static SC_INLINE void stream(uint8_t* p, Reg x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), x); }
  static SC_INLINE void stream_blocks(uint8_t* p, Reg x) {
    auto* to = reinterpret_cast<__m128i*>(p);
    _mm_stream_si128(to, _mm256_castsi256_si128(x));
    _mm_stream_si128(to + 1, _mm256_extracti128_si256(x, 1));
  }
};

}  // namespace
}  // namespace securecoll::host
