// A 512-bit register and what the kernels of all AEADs do with it, for a vector class to inherit: AVX-512 F, VAES.
//
// Only the intrinsics named _mm512_* here and in those classes touch 512-bit registers: tests/host replaces them by
// others of the same meaning, to run these very files on CPUs without AVX-512.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "host/aead_sets.hpp"

namespace securecoll::host {
namespace {

struct Register512 {
  using Reg = __m512i;
  static constexpr int kBlocks = 4;

  static SC_INLINE Reg load_private(const void* p) { return _mm512_loadu_si512(p); }
  static SC_INLINE Reg bxor(Reg a, Reg b) { return _mm512_xor_si512(a, b); }
  static SC_INLINE Reg aes_round(Reg x, Reg key) { return _mm512_aesenc_epi128(x, key); }
  // The exclusive or of all blocks.
  static SC_INLINE __m128i fold(Reg x) {
    const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  }

  static SC_INLINE Reg load(const uint8_t* p) { return *reinterpret_cast<const volatile __m512i_u*>(p); }
  static SC_INLINE void store(uint8_t* p, Reg x) { *reinterpret_cast<volatile __m512i_u*>(p) = x; }
  static SC_INLINE void stream(uint8_t* p, Reg x) { _mm512_stream_si512(reinterpret_cast<__m512i*>(p), x); }
  static SC_INLINE void stream_blocks(uint8_t* p, Reg x) {
    auto* to = reinterpret_cast<__m128i*>(p);
    const __m256i low = _mm512_castsi512_si256(x), high = _mm512_extracti64x4_epi64(x, 1);
    _mm_stream_si128(to, _mm256_castsi256_si128(low));
    _mm_stream_si128(to + 1, _mm256_extracti128_si256(low, 1));
    _mm_stream_si128(to + 2, _mm256_castsi256_si128(high));
    _mm_stream_si128(to + 3, _mm256_extracti128_si256(high, 1));
  }
};

}  // namespace
}  // namespace securecoll::host
