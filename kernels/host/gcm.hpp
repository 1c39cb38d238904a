// AES-256-GCM (NIST SP 800-38D), written once over the width of a vector.
//
// A translation unit selects its instruction set with `#pragma GCC target`, includes this file and a vector class,
// and instantiates Gcm<Vector>. Everything is in an unnamed namespace and uses no function of the standard library:
// code compiled for one instruction set must not be merged with code compiled for another.
//
// Reading once, writing once. Untrusted memory is touched only by Vector::load, load_partial, store, stream and
// store_partial, whose accesses the compiler may neither repeat nor replace: they are volatile or hidden from it. A
// compiler that knew a register to equal a place in memory could, when short of registers, use the place again.
// What is hashed is the register that was stored, or that is decrypted.
//
// GHASH without bit reversal: blocks are byte-reversed, powers of H carry a factor x^-1, and sums of products are
// reduced by two multiplications with 0xc2 << 56 (S. Gueron, M. Kounavis, "Intel Carry-Less Multiplication
// Instruction and its Usage for Computing the GCM Mode", 2010; the reduction is Montgomery's). A sum of n products
// with H^n .. H^1 is reduced once.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "host/aead_sets.hpp"

#define SC_UNROLL _Pragma("GCC unroll 16")

namespace securecoll::host {
namespace {

SC_INLINE __m128i reverse_bytes(__m128i x) {
  return _mm_shuffle_epi8(x, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

SC_INLINE __m128i load_block(const void* p) { return *static_cast<const volatile __m128i_u*>(p); }
SC_INLINE void store_block(void* p, __m128i x) { *static_cast<volatile __m128i_u*>(p) = x; }

template <class Word>
struct Unaligned {
  typedef Word Type __attribute__((aligned(1), may_alias));
};

// Loads `n` bytes, 1 to 15, as a block padded with zeros.
SC_INLINE __m128i load_bytes(const uint8_t* p, size_t n) {
  uint64_t whole = 0, rest = 0;
  int shift = 0;
  if (n & 8) {
    whole = *reinterpret_cast<const volatile Unaligned<uint64_t>::Type*>(p);
    p += 8;
  }
  if (n & 4) {
    rest = *reinterpret_cast<const volatile Unaligned<uint32_t>::Type*>(p);
    p += 4;
    shift = 32;
  }
  if (n & 2) {
    rest |= static_cast<uint64_t>(*reinterpret_cast<const volatile Unaligned<uint16_t>::Type*>(p)) << shift;
    p += 2;
    shift += 16;
  }
  if (n & 1) rest |= static_cast<uint64_t>(*static_cast<const volatile uint8_t*>(p)) << shift;
  const auto low = static_cast<long long>(n & 8 ? whole : rest);
  return _mm_set_epi64x(n & 8 ? static_cast<long long>(rest) : 0, low);
}

// Stores the first `n` bytes, 1 to 15, of a block.
SC_INLINE void store_bytes(uint8_t* p, size_t n, __m128i x) {
  auto word = static_cast<uint64_t>(_mm_cvtsi128_si64(x));
  if (n & 8) {
    *reinterpret_cast<volatile Unaligned<uint64_t>::Type*>(p) = word;
    p += 8;
    word = static_cast<uint64_t>(_mm_extract_epi64(x, 1));
  }
  if (n & 4) {
    *reinterpret_cast<volatile Unaligned<uint32_t>::Type*>(p) = static_cast<uint32_t>(word);
    p += 4;
    word >>= 32;
  }
  if (n & 2) {
    *reinterpret_cast<volatile Unaligned<uint16_t>::Type*>(p) = static_cast<uint16_t>(word);
    p += 2;
    word >>= 16;
  }
  if (n & 1) *static_cast<volatile uint8_t*>(p) = static_cast<uint8_t>(word);
}

// Two of the three parts of a 128 x 128 bit product, `low` and `high`, and `middle`, which straddles them.
SC_INLINE __m128i reduce_product(__m128i low, __m128i middle, __m128i high) {
  const __m128i polynomial = _mm_set_epi64x(static_cast<long long>(0xc200000000000000), 1);
  // Swapped halves bring a part's low word over its high one; the multiplication cancels that low word.
  middle =
      _mm_xor_si128(middle, _mm_xor_si128(_mm_shuffle_epi32(low, 0x4e), _mm_clmulepi64_si128(polynomial, low, 0x01)));
  return _mm_xor_si128(high,
                       _mm_xor_si128(_mm_shuffle_epi32(middle, 0x4e), _mm_clmulepi64_si128(polynomial, middle, 0x01)));
}

SC_INLINE __m128i multiply(__m128i a, __m128i b) {
  return reduce_product(_mm_clmulepi64_si128(a, b, 0x00),
                        _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10)),
                        _mm_clmulepi64_si128(a, b, 0x11));
}

constexpr int kRounds = 14;
constexpr size_t kPowers = 40;
constexpr size_t kHalves = 32;  // as many as a stride may have blocks

// What AeadKey holds.
struct Schedule {
  __m128i round[kRounds + 1];
  __m128i power[kPowers + 3];  // H^kPowers .. H^1, then zeros: a vector may be loaded from any power
  __m128i halves[kHalves];     // of the last powers: low half xor high half, in both halves
};
static_assert(sizeof(Schedule) <= sizeof(AeadKey) && alignof(Schedule) <= alignof(AeadKey));

SC_INLINE const Schedule& schedule_of(const AeadKey& key) { return *reinterpret_cast<const Schedule*>(key.bytes); }

SC_INLINE __m128i encrypt_block(const Schedule& k, __m128i block) {
  block = _mm_xor_si128(block, k.round[0]);
  SC_UNROLL for (int r = 1; r < kRounds; ++r) block = _mm_aesenc_si128(block, k.round[r]);
  return _mm_aesenclast_si128(block, k.round[kRounds]);
}

// FIPS 197, section 5.2, for 256-bit keys: each step makes four words from the four eight places back.
template <int kConstant>
SC_INLINE __m128i next_round_key(__m128i eight_back, __m128i before) {
  const __m128i assist = _mm_aeskeygenassist_si128(before, kConstant);
  const __m128i mixed = kConstant != 0 ? _mm_shuffle_epi32(assist, 0xff) : _mm_shuffle_epi32(assist, 0xaa);
  eight_back = _mm_xor_si128(eight_back, _mm_slli_si128(eight_back, 4));
  eight_back = _mm_xor_si128(eight_back, _mm_slli_si128(eight_back, 8));
  return _mm_xor_si128(eight_back, mixed);
}

void expand_key(AeadKey* key, const uint8_t raw[kKeyBytes]) {
  Schedule& k = *reinterpret_cast<Schedule*>(key->bytes);
  __m128i* w = k.round;
  w[0] = load_block(raw);
  w[1] = load_block(raw + 16);
  w[2] = next_round_key<0x01>(w[0], w[1]);
  w[3] = next_round_key<0>(w[1], w[2]);
  w[4] = next_round_key<0x02>(w[2], w[3]);
  w[5] = next_round_key<0>(w[3], w[4]);
  w[6] = next_round_key<0x04>(w[4], w[5]);
  w[7] = next_round_key<0>(w[5], w[6]);
  w[8] = next_round_key<0x08>(w[6], w[7]);
  w[9] = next_round_key<0>(w[7], w[8]);
  w[10] = next_round_key<0x10>(w[8], w[9]);
  w[11] = next_round_key<0>(w[9], w[10]);
  w[12] = next_round_key<0x20>(w[10], w[11]);
  w[13] = next_round_key<0>(w[11], w[12]);
  w[14] = next_round_key<0x40>(w[12], w[13]);

  __m128i h = reverse_bytes(encrypt_block(k, _mm_setzero_si128()));
  // h * x^-1: in this order of bits a shift to the left by one. The top bit that it drops is reduced, which sets the
  // polynomial's bits at both ends; the low half's top bit is carried into the high half.
  const __m128i carries = _mm_srai_epi32(_mm_shuffle_epi32(h, 0xd3), 31);
  const __m128i reduction = _mm_set_epi64x(static_cast<long long>(0xc200000000000001), 1);
  h = _mm_xor_si128(_mm_add_epi64(h, h), _mm_and_si128(carries, reduction));
  __m128i power = h;
  for (size_t i = kPowers; i-- > 0; power = multiply(power, h)) k.power[i] = power;
  for (size_t i = kPowers; i < kPowers + 3; ++i) k.power[i] = _mm_setzero_si128();
  for (size_t i = 0; i < kHalves; ++i) {
    const __m128i p = k.power[kPowers - kHalves + i];
    k.halves[i] = _mm_xor_si128(p, _mm_shuffle_epi32(p, 0x4e));
  }
}

// Vector must give: Reg, kBlocks (blocks in a Reg), kGroup (vectors encrypted side by side: a group), kGroups (groups
// hashed into one sum: a stride), kKaratsuba (three multiplications a vector and a shuffle, instead of four
// multiplications), and the one-line functions used below.
template <class Vector>
class Gcm {
 public:
  static void seal(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                   const uint8_t* plain, size_t bytes, uint8_t* sealed, uint8_t* tag) {
    store_block(tag,
                crypt<true, Stores::near>(schedule_of(key), nonce, aad, aad_bytes, plain, bytes, sealed, nullptr));
  }

  // Past the caches: the lines of `sealed` are not fetched from the core that read them last.
  static void seal_far(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                       const uint8_t* plain, size_t bytes, uint8_t* sealed, uint8_t* tag) {
    if (reinterpret_cast<uintptr_t>(sealed) % kVectorBytes != 0) {
      return seal(key, nonce, aad, aad_bytes, plain, bytes, sealed, tag);
    }
    store_block(tag, crypt<true, Stores::far>(schedule_of(key), nonce, aad, aad_bytes, plain, bytes, sealed, nullptr));
    _mm_sfence();  // such stores are not ordered before the store that announces the record
  }

  static bool open(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                   const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void* prefetch) {
    return matches(tag, crypt<false, Stores::near>(schedule_of(key), nonce, aad, aad_bytes, sealed, bytes, plain,
                                                   static_cast<const char*>(prefetch)));
  }

  // Past the caches: the lines of `plain` are not fetched to be overwritten.
  static bool open_far(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                       const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void*) {
    const auto address = reinterpret_cast<uintptr_t>(plain);
    if (address % 16 != 0) return open(key, nonce, aad, aad_bytes, sealed, bytes, tag, plain, nullptr);
    const auto crypt_far = address % kVectorBytes == 0 ? crypt<false, Stores::far> : crypt<false, Stores::far_blocks>;
    const bool good = matches(tag, crypt_far(schedule_of(key), nonce, aad, aad_bytes, sealed, bytes, plain, nullptr));
    _mm_sfence();  // such stores are not ordered before those that tell another thread of them
    return good;
  }

 private:
  using Reg = typename Vector::Reg;

  static SC_INLINE bool matches(const uint8_t* tag, __m128i expected) {
    const __m128i difference = _mm_xor_si128(expected, load_block(tag));
    return _mm_testz_si128(difference, difference);
  }

  static constexpr size_t kVectorBytes = 16 * Vector::kBlocks;
  static constexpr size_t kGroupBytes = kVectorBytes * Vector::kGroup;
  static constexpr size_t kGroupBlocks = Vector::kBlocks * Vector::kGroup;
  static constexpr size_t kStrideBytes = kGroupBytes * Vector::kGroups;
  static constexpr size_t kStrideBlocks = kGroupBlocks * Vector::kGroups;
  static constexpr int kStride = Vector::kGroup * Vector::kGroups;
  static constexpr size_t kAhead = 2048;  // bytes of text asked for before they are used; past the end does no harm
  static_assert(Vector::kGroup < kRounds, "one vector is hashed in each round");
  static_assert(kStrideBlocks <= kHalves && kHalves < kPowers, "powers of H for the blocks of a stride");
  static_assert((kGroupBlocks & (kGroupBlocks - 1)) == 0 && kGroupBlocks <= 128, "see Counters");

  static SC_INLINE size_t blocks_of(size_t bytes) { return (bytes + 15) / 16; }

  // A sum of products of blocks with descending powers of H, not yet reduced.
  struct Sum {
    Reg low, middle, high;

    SC_INLINE Sum() : low(Vector::zero()), middle(Vector::zero()), high(Vector::zero()) {}
    SC_INLINE void add(Reg blocks, const __m128i* powers) {
      const Reg h = Vector::load_private(powers);
      low = Vector::bxor(low, Vector::template multiply<0x00>(blocks, h));
      middle =
          Vector::bxor(middle, Vector::template multiply<0x01>(blocks, h), Vector::template multiply<0x10>(blocks, h));
      high = Vector::bxor(high, Vector::template multiply<0x11>(blocks, h));
    }
    // The same with Karatsuba's middle part, which still lacks low and high. Do not mix with add.
    SC_INLINE void add_karatsuba(Reg blocks, const __m128i* powers, const __m128i* halves) {
      const Reg h = Vector::load_private(powers);
      low = Vector::bxor(low, Vector::template multiply<0x00>(blocks, h));
      middle = Vector::bxor(middle, Vector::template multiply<0x00>(Vector::bxor(blocks, Vector::swap_halves(blocks)),
                                                                    Vector::load_private(halves)));
      high = Vector::bxor(high, Vector::template multiply<0x11>(blocks, h));
      // Else the compiler may hold all products in order to add them in another order, and runs out of registers.
      Vector::pin(low);
      Vector::pin(middle);
      Vector::pin(high);
    }
    SC_INLINE __m128i reduced() const {
      return reduce_product(Vector::fold(low), Vector::fold(middle), Vector::fold(high));
    }
    SC_INLINE __m128i reduced_karatsuba() const {
      const __m128i l = Vector::fold(low), h = Vector::fold(high);
      return reduce_product(l, _mm_xor_si128(Vector::fold(middle), _mm_xor_si128(l, h)), h);
    }
  };

  // A GHASH pass over a number of blocks known in advance, at most kPowers: one reduction.
  struct Pass {
    Sum sum;
    const __m128i* power;
    Reg carry;  // the hash so far, added to the first block

    SC_INLINE Pass(const Schedule& k, size_t blocks, __m128i hash)
        : power(k.power + kPowers - blocks), carry(Vector::from_block(hash)) {}
    // `blocks` blocks, zeros behind them.
    SC_INLINE void add(Reg data, size_t blocks) { add_reversed(Vector::reverse_bytes(data), blocks); }
    SC_INLINE void add_reversed(Reg data, size_t blocks) {
      sum.add(Vector::bxor(data, carry), power);
      carry = Vector::zero();
      power += blocks;
    }
    // Private bytes, padded with zeros to whole blocks.
    SC_INLINE void add_bytes(const uint8_t* p, size_t bytes) {
      for (; bytes >= kVectorBytes; p += kVectorBytes, bytes -= kVectorBytes) add(Vector::load(p), Vector::kBlocks);
      if (bytes > 0) add(Vector::load_partial(p, bytes), blocks_of(bytes));
    }
  };

  static SC_INLINE Reg whiten(const Schedule& k, Reg counter) {
    return Vector::bxor(Vector::reverse_bytes(counter), Vector::broadcast(&k.round[0]));
  }

  // What turns a group's base, which is the counter of its first block less 2, into the counters of its blocks. Text
  // begins at counter 2, so the base of the first group is 0, and those that follow are multiples of kGroupBlocks: for
  // all vectors but the last, adding is an exclusive or of last bytes, which commutes with whitening.
  struct Counters {
    alignas(kVectorBytes) uint8_t differences[16 * (kGroupBlocks - Vector::kBlocks)];  // big-endian blocks
    alignas(kVectorBytes) uint32_t first[4 * Vector::kBlocks];                         // summands, of a first vector
    alignas(kVectorBytes) uint32_t last[4 * Vector::kBlocks];                          // and of a group's last

    constexpr Counters() : differences{}, first{}, last{} {
      for (size_t i = 0; i < kGroupBlocks - Vector::kBlocks; ++i) {
        differences[16 * i + 15] = static_cast<uint8_t>(2 + i);
      }
      for (size_t i = 0; i < Vector::kBlocks; ++i) {
        first[4 * i] = static_cast<uint32_t>(2 + i);
        last[4 * i] = static_cast<uint32_t>(2 + kGroupBlocks - Vector::kBlocks + i);
      }
    }
  };
  static constexpr Counters kCounters{};

  // A group's counters, whitened; leads `base` to the next group.
  static SC_INLINE void whiten_group(const Schedule& k, Reg& base, Reg* state) {
    Reg white = whiten(k, base);
    Vector::pin(white);
    SC_UNROLL for (int i = 0; i < Vector::kGroup - 1; ++i) {
      state[i] = Vector::bxor(white, Vector::load_private(kCounters.differences + kVectorBytes * i));
    }
    state[Vector::kGroup - 1] = whiten(k, Vector::add32(base, Vector::load_private(kCounters.last)));
    base = Vector::add32(base, Vector::group_step());
  }

  // Turns a group of text into the other kind and leaves its ciphertext, byte-reversed, in `held`. With kHash it adds
  // to `sum` what `held` held before, meanwhile: AES rounds and multiplications of different groups are independent,
  // and fill each other's latencies. `hash`, where it is not null, is added to the first of these blocks.
  template <bool kSeal, bool kHash, Stores kStores>
  static SC_INLINE void group(const Schedule& k, Reg& base, Sum& sum, const __m128i* hash, const __m128i* powers,
                              const __m128i* halves, Reg* held, const uint8_t* in, uint8_t* out,
                              const char*& prefetch) {
    // Hardware prefetchers stop at the end of a page.
    SC_UNROLL for (size_t i = 0; i < kGroupBytes; i += 64) __builtin_prefetch(in + kAhead + i, 0, 3);
    if (!kSeal && prefetch != nullptr) {
      SC_UNROLL for (size_t i = 0; i < kGroupBytes; i += 64) __builtin_prefetch(prefetch + i, 1, 3);
      prefetch += kGroupBytes;
    }
    Reg state[Vector::kGroup];
    whiten_group(k, base, state);
    SC_UNROLL for (int r = 1; r < kRounds; ++r) {
      const Reg round = Vector::broadcast(&k.round[r]);
      SC_UNROLL for (int i = 0; i < Vector::kGroup; ++i) state[i] = Vector::aes_round(state[i], round);
      const int i = r - 1;
      if (kHash && i < Vector::kGroup) {
        const Reg blocks = i == 0 && hash != nullptr ? Vector::bxor(held[0], Vector::from_block(*hash)) : held[i];
        if constexpr (Vector::kKaratsuba) {
          sum.add_karatsuba(blocks, powers + Vector::kBlocks * i, halves + Vector::kBlocks * i);
        } else {
          sum.add(blocks, powers + Vector::kBlocks * i);
        }
      }
    }
    const Reg last = Vector::broadcast(&k.round[kRounds]);
    SC_UNROLL for (int i = 0; i < Vector::kGroup; ++i) {
      const Reg from = Vector::load(in + kVectorBytes * i);
      const Reg to = Vector::aes_last(state[i], Vector::bxor(last, from));
      held[i] = Vector::reverse_bytes(kSeal ? to : from);
      asm("" : "+m"(held[i]));  // in memory now, not in a register that the next group's rounds want
      if constexpr (kStores == Stores::far) {
        Vector::stream(out + kVectorBytes * i, to);
      } else if constexpr (kStores == Stores::far_blocks) {
        Vector::stream_blocks(out + kVectorBytes * i, to);
      } else {
        Vector::store(out + kVectorBytes * i, to);
      }
    }
  }

  // A stride: group by group, and one reduction.
  template <bool kSeal, bool kHash, Stores kStores>
  static SC_INLINE void stride(const Schedule& k, Reg& base, __m128i& hash, Reg* held, const uint8_t* in, uint8_t* out,
                               const char*& prefetch) {
    Sum sum;
    SC_UNROLL for (int g = 0; g < Vector::kGroups; ++g) {
      group<kSeal, kHash, kStores>(k, base, sum, g == 0 ? &hash : nullptr,
                                   k.power + kPowers - kStrideBlocks + kGroupBlocks * g,
                                   k.halves + kHalves - kStrideBlocks + kGroupBlocks * g, held + Vector::kGroup * g,
                                   in + kGroupBytes * g, out + kGroupBytes * g, prefetch);
    }
    if constexpr (kHash && Vector::kKaratsuba) hash = sum.reduced_karatsuba();
    if constexpr (kHash && !Vector::kKaratsuba) hash = sum.reduced();
  }

  // `strides` > 0 strides of text.
  template <bool kSeal, Stores kStores>
  static SC_INLINE void crypt_strides(const Schedule& k, Reg& base, __m128i& hash, const uint8_t*& in, size_t strides,
                                      uint8_t*& out, const char*& prefetch) {
    Reg held[kStride];
    const auto advance = [&] {
      in += kStrideBytes;
      out += kStrideBytes;
    };
    stride<kSeal, false, kStores>(k, base, hash, held, in, out, prefetch);
    advance();
    while (--strides > 0) {
      stride<kSeal, true, kStores>(k, base, hash, held, in, out, prefetch);
      advance();
    }
    Sum sum;
    const __m128i* powers = k.power + kPowers - kStrideBlocks;
    SC_UNROLL for (int i = 0; i < kStride; ++i) {
      sum.add(i == 0 ? Vector::bxor(held[0], Vector::from_block(hash)) : held[i], powers + Vector::kBlocks * i);
    }
    hash = sum.reduced();
  }

  // Turns one vector of text into the other kind.
  static SC_INLINE Reg crypt_vector(const Schedule& k, Reg& counter, Reg from) {
    Reg state = whiten(k, counter);
    counter = Vector::add32(counter, Vector::vector_step());
    SC_UNROLL for (int r = 1; r < kRounds; ++r) state = Vector::aes_round(state, Vector::broadcast(&k.round[r]));
    return Vector::aes_last(state, Vector::bxor(Vector::broadcast(&k.round[kRounds]), from));
  }

  // Seals or opens; returns the tag.
  template <bool kSeal, Stores kStores>
  static __m128i crypt(const Schedule& k, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                       const uint8_t* in, size_t bytes, uint8_t* out, const char* prefetch) {
    uint64_t nonce_low;
    uint32_t nonce_high;
    __builtin_memcpy(&nonce_low, nonce, 8);
    __builtin_memcpy(&nonce_high, nonce + 8, 4);
    // Counter blocks 0 and 1, their last four bytes big-endian.
    const __m128i zeroth =
        _mm_set_epi64x(static_cast<long long>(uint64_t{nonce_high}), static_cast<long long>(nonce_low));
    const __m128i first = _mm_or_si128(zeroth, _mm_set_epi64x(0x0100000000000000, 0));
    const __m128i mask = encrypt_block(k, first);
    const __m128i lengths = _mm_set_epi64x(static_cast<long long>(aad_bytes * 8), static_cast<long long>(bytes * 8));
    Reg base = Vector::reverse_bytes(Vector::broadcast(&zeroth));
    __m128i hash = _mm_setzero_si128();

    const size_t strides = bytes / kStrideBytes;
    const size_t tail_blocks = blocks_of(bytes % kStrideBytes);
    // A small record is one pass over associated data, text and lengths.
    const bool single = strides == 0 && blocks_of(aad_bytes) + tail_blocks < kPowers;
    if (!single) {
      const uint8_t* p = aad;
      size_t left = aad_bytes;
      while (left > 0) {
        const size_t part = left < 16 * kPowers ? left : 16 * kPowers;
        Pass pass(k, blocks_of(part), hash);
        pass.add_bytes(p, part);
        hash = pass.sum.reduced();
        p += part;
        left -= part;
      }
    }
    if (strides > 0) crypt_strides<kSeal, kStores>(k, base, hash, in, strides, out, prefetch);

    Pass pass(k, (single ? blocks_of(aad_bytes) : 0) + tail_blocks + 1, hash);
    if (single) pass.add_bytes(aad, aad_bytes);
    size_t left = bytes % kStrideBytes;
    if (Vector::kGroups > 1) {
      for (; left >= kGroupBytes; left -= kGroupBytes, in += kGroupBytes, out += kGroupBytes) {
        Reg held[Vector::kGroup];
        group<kSeal, false, kStores>(k, base, pass.sum, nullptr, nullptr, nullptr, held, in, out, prefetch);
        SC_UNROLL for (int i = 0; i < Vector::kGroup; ++i) pass.add_reversed(held[i], Vector::kBlocks);
      }
    }
    if (!kSeal && prefetch != nullptr) {
      for (size_t i = 0; i < left; i += 64) __builtin_prefetch(prefetch + i, 1, 3);
    }
    Reg counter = Vector::add32(base, Vector::load_private(kCounters.first));
    for (; left >= kVectorBytes; left -= kVectorBytes, in += kVectorBytes, out += kVectorBytes) {
      const Reg from = Vector::load(in);
      const Reg to = crypt_vector(k, counter, from);
      pass.add(kSeal ? to : from, Vector::kBlocks);
      Vector::store(out, to);
    }
    if (left > 0) {
      const Reg from = Vector::load_partial(in, left);
      const Reg to = crypt_vector(k, counter, from);
      pass.add(kSeal ? Vector::first_bytes(to, left) : from, blocks_of(left));
      Vector::store_partial(out, left, to);
    }
    pass.sum.add(Vector::bxor(Vector::from_block(lengths), pass.carry), pass.power);
    return _mm_xor_si128(mask, reverse_bytes(pass.sum.reduced()));
  }
};

}  // namespace
}  // namespace securecoll::host
