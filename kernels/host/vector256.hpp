// Two AES blocks in a 256-bit register, for gcm.hpp: AVX2, VAES, VPCLMULQDQ.
#pragma once
#include "host/gcm.hpp"
#include "host/register256.hpp"

namespace securecoll::host {
namespace {

struct Vector256 : Register256 {
  static constexpr int kGroup = 8;  // with a sum of three parts, all that sixteen registers hold
  static constexpr int kGroups = 2;
  static constexpr bool kKaratsuba = true;

  static SC_INLINE Reg zero() { return _mm256_setzero_si256(); }
  static SC_INLINE Reg broadcast(const __m128i* p) { return _mm256_broadcastsi128_si256(*p); }
  static SC_INLINE Reg from_block(__m128i x) { return _mm256_zextsi128_si256(x); }
  using Register256::bxor;
  static SC_INLINE Reg bxor(Reg a, Reg b, Reg c) { return bxor(bxor(a, b), c); }
  static SC_INLINE Reg add32(Reg a, Reg b) { return _mm256_add_epi32(a, b); }
  static SC_INLINE Reg aes_last(Reg x, Reg key) { return _mm256_aesenclast_epi128(x, key); }
  template <int kHalves>
  static SC_INLINE Reg multiply(Reg a, Reg b) {
    return _mm256_clmulepi64_epi128(a, b, kHalves);
  }
  static SC_INLINE Reg swap_halves(Reg x) { return _mm256_shuffle_epi32(x, 0x4e); }
  static SC_INLINE Reg reverse_bytes(Reg x) {
    return _mm256_shuffle_epi8(x, _mm256_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,  //
                                                  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  }
  // Added to byte-reversed counters: what leads to the next vector, and the next group.
  static SC_INLINE Reg vector_step() { return _mm256_set_epi32(0, 0, 0, 2, 0, 0, 0, 2); }
  static SC_INLINE Reg group_step() { return _mm256_set_epi32(0, 0, 0, 16, 0, 0, 0, 16); }
  // The compiler must have the value now, and no longer knows how it came about.
  static SC_INLINE void pin(Reg& x) { asm("" : "+x"(x)); }

  // `n` bytes, 1 to 31; a load pads with zeros.
  static SC_INLINE Reg load_partial(const uint8_t* p, size_t n) {
    if (n < 16) return _mm256_zextsi128_si256(load_bytes(p, n));
    const __m128i low = load_block(p);
    return _mm256_set_m128i(n > 16 ? load_bytes(p + 16, n - 16) : _mm_setzero_si128(), low);
  }
  static SC_INLINE void store_partial(uint8_t* p, size_t n, Reg x) {
    if (n < 16) return store_bytes(p, n, _mm256_castsi256_si128(x));
    store_block(p, _mm256_castsi256_si128(x));
    if (n > 16) store_bytes(p + 16, n - 16, _mm256_extracti128_si256(x, 1));
  }
  // The first `n` bytes, zeros behind them.
  static SC_INLINE Reg first_bytes(Reg x, size_t n) {
    alignas(32) static constexpr uint8_t window[64] = {
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    return _mm256_and_si256(x, load_private(window + 32 - n));
  }
};

}  // namespace
}  // namespace securecoll::host
