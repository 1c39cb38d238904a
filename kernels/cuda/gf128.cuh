// Arithmetic in GF(2^128) as GCM defines it (NIST SP 800-38D, section 6.3), in constant time.
//
// Elements are blocks as they lie in memory: coefficient i is bit 7 - i % 8 of byte i / 8.
#pragma once
#include "platform.cuh"

namespace securecoll::cuda {

// Reverses the bits of each byte: then coefficient i of a word is its bit i.
SC_DEVICE u32 reflect(u32 x) { return __brev(__byte_perm(x, 0, 0x0123)); }

// A product without carries, of integer ones: each operand is split into four by its bits' places modulo 4. A sum of
// products of such parts has at most 8 terms in a place, and so does not reach the next place of the same class (the
// technique of T. Pornin's BearSSL).
SC_DEVICE u64 multiply32(u32 a, u32 b) {
  const u32 a0 = a & 0x11111111u, a1 = a & 0x22222222u, a2 = a & 0x44444444u, a3 = a & 0x88888888u;
  const u32 b0 = b & 0x11111111u, b1 = b & 0x22222222u, b2 = b & 0x44444444u, b3 = b & 0x88888888u;
  const u64 c0 = u64{a0} * b0 ^ u64{a1} * b3 ^ u64{a2} * b2 ^ u64{a3} * b1;
  const u64 c1 = u64{a0} * b1 ^ u64{a1} * b0 ^ u64{a2} * b3 ^ u64{a3} * b2;
  const u64 c2 = u64{a0} * b2 ^ u64{a1} * b1 ^ u64{a2} * b0 ^ u64{a3} * b3;
  const u64 c3 = u64{a0} * b3 ^ u64{a1} * b2 ^ u64{a2} * b1 ^ u64{a3} * b0;
  return (c0 & 0x1111111111111111u) | (c1 & 0x2222222222222222u) | (c2 & 0x4444444444444444u) |
         (c3 & 0x8888888888888888u);
}

struct Product64 {
  u64 low, high;
};

// Karatsuba's three products in place of four.
SC_DEVICE Product64 multiply64(u32 a0, u32 a1, u32 b0, u32 b1) {
  const u64 low = multiply32(a0, b0), high = multiply32(a1, b1);
  const u64 middle = multiply32(a0 ^ a1, b0 ^ b1) ^ low ^ high;
  return {low ^ middle << 32, high ^ middle >> 32};
}

// Not inlined: it is long, and called from many places.
__device__ __noinline__ inline uint4 gf_multiply(uint4 a, uint4 b) {
  const u32 a0 = reflect(a.x), a1 = reflect(a.y), a2 = reflect(a.z), a3 = reflect(a.w);
  const u32 b0 = reflect(b.x), b1 = reflect(b.y), b2 = reflect(b.z), b3 = reflect(b.w);
  const Product64 low = multiply64(a0, a1, b0, b1), high = multiply64(a2, a3, b2, b3);
  Product64 middle = multiply64(a0 ^ a2, a1 ^ a3, b0 ^ b2, b1 ^ b3);
  middle.low ^= low.low ^ high.low;
  middle.high ^= low.high ^ high.high;
  u64 p0 = low.low, p1 = low.high ^ middle.low, p2 = high.low ^ middle.high;
  const u64 p3 = high.high;
  // x^128 = x^7 + x^2 + x + 1
  p1 ^= p3 ^ p3 << 1 ^ p3 << 2 ^ p3 << 7;
  p2 ^= p3 >> 63 ^ p3 >> 62 ^ p3 >> 57;
  p0 ^= p2 ^ p2 << 1 ^ p2 << 2 ^ p2 << 7;
  p1 ^= p2 >> 63 ^ p2 >> 62 ^ p2 >> 57;
  return make_uint4(reflect(static_cast<u32>(p0)), reflect(static_cast<u32>(p0 >> 32)), reflect(static_cast<u32>(p1)),
                    reflect(static_cast<u32>(p1 >> 32)));
}

SC_DEVICE uint4 gf_one() { return make_uint4(0x80, 0, 0, 0); }

// a times x: coefficients move up by one, that is toward higher bytes and lower bits.
SC_DEVICE uint4 gf_times_x(uint4 a) {
  const u32 w0 = __byte_perm(a.x, 0, 0x0123), w1 = __byte_perm(a.y, 0, 0x0123);
  const u32 w2 = __byte_perm(a.z, 0, 0x0123), w3 = __byte_perm(a.w, 0, 0x0123);
  const u32 overflow = (0u - (w3 & 1)) & 0xe1000000u;
  return make_uint4(__byte_perm(w0 >> 1 ^ overflow, 0, 0x0123), __byte_perm(__funnelshift_r(w1, w0, 1), 0, 0x0123),
                    __byte_perm(__funnelshift_r(w2, w1, 1), 0, 0x0123),
                    __byte_perm(__funnelshift_r(w3, w2, 1), 0, 0x0123));
}

// 1/a = a^(2^128 - 2), and 0 of 0. With e(n) = a^(2^n - 1): e(2n) = e(n)^(2^n) * e(n), and e(n + 1) = e(n)^2 * a.
SC_DEVICE uint4 gf_invert(uint4 a) {
  uint4 e = a;
  SC_UNROLL_NONE for (int n = 1; n < 127; n = 2 * n + 1) {
    uint4 raised = e;
    SC_UNROLL_NONE for (int i = 0; i < n; ++i) raised = gf_multiply(raised, raised);
    e = gf_multiply(raised, e);
    e = gf_multiply(gf_multiply(e, e), a);
  }
  return gf_multiply(e, e);
}

// The product of those of power[0], power[1], .. that `exponent` has bits for. The exponent is not secret.
SC_DEVICE uint4 gf_power(const uint4* power, u32 exponent) {
  uint4 product = gf_one();
  SC_UNROLL_NONE for (; exponent != 0; exponent >>= 1, ++power) {
    if (exponent & 1) product = gf_multiply(product, *power);
  }
  return product;
}

}  // namespace securecoll::cuda
