// The 512-bit intrinsics that kernels/host/vector512.hpp and aegis_vector512.hpp name, out of 256-bit ones, so that
// the tests run these files on CPUs with VAES and VPCLMULQDQ but without AVX-512. Each follows the pseudocode of
// Intel's intrinsics guide. Include before either.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace emulated {

#define EMULATED static inline __attribute__((always_inline))

// A 512-bit value and its halves, the lower one first.
union Halves {
  __m512i whole;
  __m256i half[2];
  uint8_t byte[64];
};

EMULATED __m512i join(__m256i low, __m256i high) {
  Halves x;
  x.half[0] = low;
  x.half[1] = high;
  return x.whole;
}
EMULATED __m256i half(__m512i x, int i) {
  Halves h;
  h.whole = x;
  return h.half[i];
}

EMULATED __m512i setzero() { return join(_mm256_setzero_si256(), _mm256_setzero_si256()); }
EMULATED __m512i broadcast_i32x4(__m128i x) {
  return join(_mm256_broadcastsi128_si256(x), _mm256_broadcastsi128_si256(x));
}
EMULATED __m512i zextsi128(__m128i x) { return join(_mm256_zextsi128_si256(x), _mm256_setzero_si256()); }
EMULATED __m512i loadu(const void* p) {
  const auto* q = static_cast<const __m256i_u*>(p);
  return join(_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1));
}
EMULATED void storeu(void* p, __m512i value) {
  auto* q = static_cast<__m256i_u*>(p);
  _mm256_storeu_si256(q, half(value, 0));
  _mm256_storeu_si256(q + 1, half(value, 1));
}
EMULATED __m512i set_epi32(int f, int e, int d, int c, int b, int a, int n9, int n8, int n7, int n6, int n5, int n4,
                           int n3, int n2, int n1, int n0) {
  return join(_mm256_set_epi32(n7, n6, n5, n4, n3, n2, n1, n0), _mm256_set_epi32(f, e, d, c, b, a, n9, n8));
}
EMULATED __m256i castsi512_si256(__m512i x) { return half(x, 0); }

#define EMULATED_PAIRWISE(name, of) \
  EMULATED __m512i name(__m512i a, __m512i b) { return join(of(half(a, 0), half(b, 0)), of(half(a, 1), half(b, 1))); }
EMULATED_PAIRWISE(bxor, _mm256_xor_si256)
EMULATED_PAIRWISE(add_epi32, _mm256_add_epi32)
EMULATED_PAIRWISE(aesenc, _mm256_aesenc_epi128)
EMULATED_PAIRWISE(aesenclast, _mm256_aesenclast_epi128)
EMULATED_PAIRWISE(shuffle_epi8, _mm256_shuffle_epi8)

// Bit i of the result is bit (a_i b_i c_i) of the table.
EMULATED __m512i ternarylogic(__m512i a, __m512i b, __m512i c, int table) {
  Halves x, y, z, r;
  x.whole = a;
  y.whole = b;
  z.whole = c;
  for (int h = 0; h < 2; ++h) {
    r.half[h] = _mm256_setzero_si256();
    for (int row = 0; row < 8; ++row) {
      if (!(table >> row & 1)) continue;
      const __m256i p = row & 4 ? x.half[h] : ~x.half[h];
      const __m256i q = row & 2 ? y.half[h] : ~y.half[h];
      const __m256i s = row & 1 ? z.half[h] : ~z.half[h];
      r.half[h] |= p & q & s;
    }
  }
  return r.whole;
}

EMULATED __m512i maskz_loadu_epi8(uint64_t mask, const void* p) {
  Halves x;
  x.whole = setzero();
  for (int i = 0; i < 64; ++i) {
    if (mask >> i & 1) x.byte[i] = static_cast<const uint8_t*>(p)[i];
  }
  return x.whole;
}
EMULATED void mask_storeu_epi8(void* p, uint64_t mask, __m512i value) {
  Halves x;
  x.whole = value;
  for (int i = 0; i < 64; ++i) {
    if (mask >> i & 1) static_cast<uint8_t*>(p)[i] = x.byte[i];
  }
}
EMULATED void stream(__m512i* p, __m512i value) {
  for (int h = 0; h < 2; ++h) _mm256_stream_si256(reinterpret_cast<__m256i*>(p) + h, half(value, h));
}
EMULATED __m512i maskz_mov_epi8(uint64_t mask, __m512i value) {
  Halves x;
  x.whole = value;
  for (int i = 0; i < 64; ++i) {
    if (!(mask >> i & 1)) x.byte[i] = 0;
  }
  return x.whole;
}

}  // namespace emulated

// Those that take a constant are macros in immintrin.h as well.
#undef _mm512_clmulepi64_epi128
#undef _mm512_extracti64x4_epi64
#undef _mm512_ternarylogic_epi32
#define _mm512_clmulepi64_epi128(a, b, halves)                                                 \
  emulated::join(_mm256_clmulepi64_epi128(emulated::half(a, 0), emulated::half(b, 0), halves), \
                 _mm256_clmulepi64_epi128(emulated::half(a, 1), emulated::half(b, 1), halves))
#define _mm512_extracti64x4_epi64(x, i) emulated::half(x, i)
#define _mm512_ternarylogic_epi32 emulated::ternarylogic
#define _mm512_setzero_si512 emulated::setzero
#define _mm512_broadcast_i32x4 emulated::broadcast_i32x4
#define _mm512_zextsi128_si512 emulated::zextsi128
#define _mm512_loadu_si512 emulated::loadu
#define _mm512_storeu_si512 emulated::storeu
#define _mm512_set_epi32 emulated::set_epi32
#define _mm512_castsi512_si256 emulated::castsi512_si256
#define _mm512_xor_si512 emulated::bxor
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_aesenc_epi128 emulated::aesenc
#define _mm512_aesenclast_epi128 emulated::aesenclast
#define _mm512_shuffle_epi8 emulated::shuffle_epi8
#define _mm512_maskz_loadu_epi8 emulated::maskz_loadu_epi8
#define _mm512_mask_storeu_epi8 emulated::mask_storeu_epi8
#define _mm512_maskz_mov_epi8 emulated::maskz_mov_epi8
#define _mm512_stream_si512 emulated::stream

// No 512-bit register to hold a value in.
#define SC_REGISTER_512 "+m"
