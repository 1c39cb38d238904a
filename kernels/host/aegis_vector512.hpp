// Four AES blocks in a 512-bit register, a word of all states, for aegis.hpp: AVX-512 F and VAES.
//
// Only the intrinsics named _mm512_* touch 512-bit registers: tests/host replaces them, as those of vector512.hpp.
#pragma once
#include "host/aegis.hpp"

namespace securecoll::host {
namespace {

struct AegisVector512 {
  using Reg = __m512i;
  static constexpr int kBlocks = 4;

  static SC_INLINE Reg broadcast(__m128i x) { return _mm512_broadcast_i32x4(x); }
  static SC_INLINE Reg load_private(const void* p) { return _mm512_loadu_si512(p); }
  static SC_INLINE void store_private(void* p, Reg x) { _mm512_storeu_si512(p, x); }
  static SC_INLINE Reg bxor(Reg a, Reg b) { return _mm512_xor_si512(a, b); }
  // (a and b) xor c, as a table of what each three bits give
  static SC_INLINE Reg and_xor(Reg a, Reg b, Reg c) { return _mm512_ternarylogic_epi32(a, b, c, 0x6a); }
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
