// One AES block in a 128-bit register, for aegis.hpp: AVX, AES-NI.
#pragma once
#include "host/aegis.hpp"

namespace securecoll::host {
namespace {

struct AegisVector128 {
  using Reg = __m128i;
  static constexpr int kBlocks = 1;

  static SC_INLINE Reg broadcast(__m128i x) { return x; }
  static SC_INLINE Reg load_private(const void* p) { return block_at(p); }
  static SC_INLINE void store_private(void* p, Reg x) { _mm_storeu_si128(static_cast<__m128i_u*>(p), x); }
  static SC_INLINE Reg bxor(Reg a, Reg b) { return _mm_xor_si128(a, b); }
  // (a and b) xor c
  static SC_INLINE Reg and_xor(Reg a, Reg b, Reg c) { return _mm_xor_si128(_mm_and_si128(a, b), c); }
  static SC_INLINE Reg aes_round(Reg x, Reg key) { return _mm_aesenc_si128(x, key); }
  // The exclusive or of all blocks.
  static SC_INLINE __m128i fold(Reg x) { return x; }

  static SC_INLINE Reg load(const uint8_t* p) { return *reinterpret_cast<const volatile __m128i_u*>(p); }
  static SC_INLINE void store(uint8_t* p, Reg x) { *reinterpret_cast<volatile __m128i_u*>(p) = x; }
};

}  // namespace
}  // namespace securecoll::host
