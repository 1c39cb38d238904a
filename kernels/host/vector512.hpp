// Four AES blocks in a 512-bit register, for gcm.hpp: AVX-512 F, BW, DQ, VL, VAES, VPCLMULQDQ.
//
// Only the intrinsics named _mm512_* below touch 512-bit registers: tests/host replaces them by others of the same
// meaning, to run this very file on CPUs without AVX-512.
#pragma once
#include "host/gcm.hpp"
#include "host/register512.hpp"

#ifndef SC_REGISTER_512
#define SC_REGISTER_512 "+v"
#endif

namespace securecoll::host {
namespace {

struct Vector512 : Register512 {
  static constexpr int kGroup = 8;
  static constexpr int kGroups = 1;
  static constexpr bool kKaratsuba = false;

  static SC_INLINE Reg zero() { return _mm512_setzero_si512(); }
  static SC_INLINE Reg broadcast(const __m128i* p) { return _mm512_broadcast_i32x4(*p); }
  static SC_INLINE Reg from_block(__m128i x) { return _mm512_zextsi128_si512(x); }
  using Register512::bxor;
  static SC_INLINE Reg bxor(Reg a, Reg b, Reg c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
  static SC_INLINE Reg add32(Reg a, Reg b) { return _mm512_add_epi32(a, b); }
  static SC_INLINE Reg aes_last(Reg x, Reg key) { return _mm512_aesenclast_epi128(x, key); }
  template <int kHalves>
  static SC_INLINE Reg multiply(Reg a, Reg b) {
    return _mm512_clmulepi64_epi128(a, b, kHalves);
  }
  static SC_INLINE Reg reverse_bytes(Reg x) {
    const __m128i order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(order));
  }
  // Added to byte-reversed counters: what leads to the next vector, and the next group.
  static SC_INLINE Reg vector_step() { return _mm512_set_epi32(0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4); }
  static SC_INLINE Reg group_step() { return _mm512_set_epi32(0, 0, 0, 32, 0, 0, 0, 32, 0, 0, 0, 32, 0, 0, 0, 32); }
  // The compiler must have the value now, and no longer knows how it came about.
  static SC_INLINE void pin(Reg& x) { asm("" : SC_REGISTER_512(x)); }

  // `n` bytes, 1 to 63; a load pads with zeros. Masked bytes are neither read nor written.
  static SC_INLINE Reg load_partial(const uint8_t* p, size_t n) { return hide(_mm512_maskz_loadu_epi8(mask(n), p)); }
  static SC_INLINE void store_partial(uint8_t* p, size_t n, Reg x) { _mm512_mask_storeu_epi8(p, mask(n), hide(x)); }
  // The first `n` bytes, zeros behind them.
  static SC_INLINE Reg first_bytes(Reg x, size_t n) { return _mm512_maskz_mov_epi8(mask(n), x); }

 private:
  static SC_INLINE __mmask64 mask(size_t n) { return ~uint64_t{0} >> (64 - n); }
  // The same value, of which the compiler no longer knows where it came from. (There is no volatile masked access.)
  static SC_INLINE Reg hide(Reg x) {
    asm volatile("" : SC_REGISTER_512(x));
    return x;
  }
};

}  // namespace
}  // namespace securecoll::host
