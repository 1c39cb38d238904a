// Two AES blocks in a 256-bit register, for aegis.hpp: AVX2, VAES.
#pragma once
#include "host/aegis.hpp"
#include "host/register256.hpp"

namespace securecoll::host {
namespace {

struct AegisVector256 : Register256 {
  static SC_INLINE Reg broadcast(__m128i x) { return _mm256_broadcastsi128_si256(x); }
  static SC_INLINE void store_private(void* p, Reg x) { _mm256_storeu_si256(static_cast<__m256i_u*>(p), x); }
  // (a and b) xor c
  static SC_INLINE Reg and_xor(Reg a, Reg b, Reg c) { return _mm256_xor_si256(_mm256_and_si256(a, b), c); }
};

}  // namespace
}  // namespace securecoll::host
