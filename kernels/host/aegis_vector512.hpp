// Four AES blocks in a 512-bit register, a word of all states, for aegis.hpp: AVX-512 F and VAES.
//
// Only the intrinsics named _mm512_* touch 512-bit registers: tests/host replaces them, as those of vector512.hpp.
#pragma once
#include "host/aegis.hpp"
#include "host/register512.hpp"

namespace securecoll::host {
namespace {

struct AegisVector512 : Register512 {
  static SC_INLINE Reg broadcast(__m128i x) { return _mm512_broadcast_i32x4(x); }
  static SC_INLINE void store_private(void* p, Reg x) { _mm512_storeu_si512(p, x); }
  // (a and b) xor c, as a table of what each three bits give
  static SC_INLINE Reg and_xor(Reg a, Reg b, Reg c) { return _mm512_ternarylogic_epi32(a, b, c, 0x6a); }
};

}  // namespace
}  // namespace securecoll::host
