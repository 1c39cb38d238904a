// AEGIS-256X4 with tags of 128 bits (draft-irtf-cfrg-aegis-aead), written once over the width of a vector.
//
// Four AEGIS-256 states run side by side, each on every fourth block of the text. So each of the six words of a state
// is here four blocks, in as many registers as that takes, and an update is one AES round for each of these registers.
// There is no second pass and nothing to hash: what authenticates is the state itself, which absorbs the plaintext.
//
// As in gcm.hpp, a translation unit selects its instruction set with `#pragma GCC target`, includes this file and a
// vector class, and instantiates Aegis<Vector>; everything is in an unnamed namespace and uses no function of the
// standard library.
//
// Reading once, writing once. Untrusted memory is touched only by Vector::load, store and stream and by copy_once,
// whose accesses the compiler may neither repeat nor replace. What is absorbed is the register that was loaded, or
// that was made from it, never what lies in memory.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "host/aead_sets.hpp"

#define SC_ALWAYS __attribute__((always_inline))
#define SC_APART __attribute__((noinline))

namespace securecoll::host {
namespace {

constexpr size_t kRate = 64;  // bytes that an update absorbs

template <class Word>
SC_INLINE void move_once(uint8_t*& to, const uint8_t*& from) {
  typedef Word Any __attribute__((aligned(1), may_alias));
  *reinterpret_cast<volatile Any*>(to) = *reinterpret_cast<const volatile Any*>(from);
  to += sizeof(Word);
  from += sizeof(Word);
}

// Copies `n` bytes, fewer than kRate; each is read once and written once.
SC_INLINE void copy_once(uint8_t* to, const uint8_t* from, size_t n) {
  for (; n >= 16; n -= 16, to += 16, from += 16) {
    *reinterpret_cast<volatile __m128i_u*>(to) = *reinterpret_cast<const volatile __m128i_u*>(from);
  }
  if (n & 8) move_once<uint64_t>(to, from);
  if (n & 4) move_once<uint32_t>(to, from);
  if (n & 2) move_once<uint16_t>(to, from);
  if (n & 1) move_once<uint8_t>(to, from);
}

SC_INLINE __m128i block_at(const void* p) { return _mm_loadu_si128(static_cast<const __m128i_u*>(p)); }

// What AeadKey holds: nothing that takes work comes of a key before the nonce is known.
struct RawKey {
  __m128i half[2];
};
static_assert(sizeof(RawKey) <= sizeof(AeadKey) && alignof(RawKey) <= alignof(AeadKey));

struct Nonce {
  __m128i half[2];
};

// The first numbers of Fibonacci modulo 256: C0 and C1 of the draft.
alignas(16) constexpr uint8_t kFibonacci[32] = {0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37,
                                                0x59, 0x90, 0xe9, 0x79, 0x62, 0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2,
                                                0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd};
// What makes the four states differ: in each one's block its number, and the highest number.
alignas(64) constexpr uint8_t kContexts[kRate] = {0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                                  1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                                  2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                                  3, 3};

// A number that the compiler knows: state that is indexed by nothing else stays in registers.
template <int kNumber>
struct Index {
  constexpr operator int() const { return kNumber; }
};

// Vector must give: Reg, kBlocks (blocks in a Reg: 1, 2 or 4), and the one-line functions used below.
template <class Vector>
class Aegis {
 public:
  static void expand(AeadKey* key, const uint8_t raw[kKeyBytes]) {
    auto* k = reinterpret_cast<RawKey*>(key->bytes);
    k->half[0] = block_at(raw);
    k->half[1] = block_at(raw + 16);
  }

  static void seal(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                   const uint8_t* plain, size_t bytes, uint8_t* sealed, uint8_t* tag) {
    store_tag(tag, crypt<true>(key, padded(nonce), aad, aad_bytes, plain, bytes, sealed, nullptr));
  }

  // Past the caches: the lines of `sealed` are not fetched from the core that read them last.
  static void seal_far(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                       const uint8_t* plain, size_t bytes, uint8_t* sealed, uint8_t* tag) {
    if (reinterpret_cast<uintptr_t>(sealed) % kVectorBytes != 0) {
      return seal(key, nonce, aad, aad_bytes, plain, bytes, sealed, tag);
    }
    store_tag(tag, crypt<true, Stores::far>(key, padded(nonce), aad, aad_bytes, plain, bytes, sealed, nullptr));
    _mm_sfence();  // such stores are not ordered before the store that announces the record
  }

  static bool open(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                   const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void* prefetch) {
    const __m128i expected =
        crypt<false>(key, padded(nonce), aad, aad_bytes, sealed, bytes, plain, static_cast<const char*>(prefetch));
    return is_tag(tag, expected);
  }

  // Past the caches: the lines of `plain` are not fetched to be overwritten.
  static bool open_far(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                       const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void*) {
    const auto address = reinterpret_cast<uintptr_t>(plain);
    if (address % 16 != 0) return open(key, nonce, aad, aad_bytes, sealed, bytes, tag, plain, nullptr);
    const auto crypt_far = address % kVectorBytes == 0 ? crypt<false, Stores::far> : crypt<false, Stores::far_blocks>;
    const bool good = is_tag(tag, crypt_far(key, padded(nonce), aad, aad_bytes, sealed, bytes, plain, nullptr));
    _mm_sfence();  // such stores are not ordered before those that tell another thread of them
    return good;
  }

  // Seals or opens under a whole nonce; returns the tag.
  template <bool kSeal, Stores kStores = Stores::near>
  static __m128i crypt(const AeadKey& key, const Nonce& nonce, const uint8_t* aad, size_t aad_bytes, const uint8_t* in,
                       size_t bytes, uint8_t* out, const char* prefetch) {
    State s;
    begin(s, *reinterpret_cast<const RawKey*>(key.bytes), nonce, aad, aad_bytes);
    const size_t whole = bytes - bytes % kRate;
    if (whole > 0) crypt_whole<kSeal, kStores>(s, in, whole, out, prefetch);
    if (whole < bytes)
      crypt_last<kSeal>(s, in + whole, bytes - whole, out + whole, prefetch == nullptr ? nullptr : prefetch + whole);
    return finish(s, aad_bytes, bytes);
  }

  static SC_INLINE void store_tag(uint8_t* tag, __m128i value) { *reinterpret_cast<volatile __m128i_u*>(tag) = value; }
  // Reads `tag` once and takes as long whatever it is.
  static SC_INLINE bool is_tag(const uint8_t* tag, __m128i expected) {
    const __m128i difference = _mm_xor_si128(expected, *reinterpret_cast<const volatile __m128i_u*>(tag));
    return _mm_testz_si128(difference, difference);
  }

 private:
  using Reg = typename Vector::Reg;
  static constexpr size_t kVectorBytes = 16 * Vector::kBlocks;
  static constexpr int kVectors = 4 / Vector::kBlocks;  // registers of a word of all four states
  static constexpr size_t kPiece = 4096;
  static constexpr size_t kAhead = 2048;  // bytes of text asked for before they are used; past the end does no harm

  // Less than a rate of text or of associated data, in private memory.
  struct alignas(64) Last {
    uint8_t bytes[kRate] = {};
    SC_INLINE Reg vector(int v) const { return Vector::load_private(bytes + kVectorBytes * v); }
    SC_INLINE void set(int v, Reg x) { Vector::store_private(bytes + kVectorBytes * v, x); }
  };

  // A nonce of ours is the first 12 bytes of one of AEGIS, and zeros follow.
  static SC_INLINE Nonce padded(const uint8_t nonce[kNonceBytes]) {
    uint64_t low;
    uint32_t high;
    __builtin_memcpy(&low, nonce, 8);
    __builtin_memcpy(&high, nonce + 8, 4);
    return {{_mm_set_epi64x(high, static_cast<long long>(low)), _mm_setzero_si128()}};
  }

  template <class Do>
  static SC_INLINE void each_vector(const Do& todo) {
    todo(Index<0>{});
    if constexpr (kVectors >= 2) todo(Index<1>{});
    if constexpr (kVectors == 4) {
      todo(Index<2>{});
      todo(Index<3>{});
    }
  }

  template <class Do>
  static SC_INLINE void each_word(const Do& todo) {
    todo(Index<0>{});
    todo(Index<1>{});
    todo(Index<2>{});
    todo(Index<3>{});
    todo(Index<4>{});
    todo(Index<5>{});
  }

  struct State {
    Reg word[6][kVectors];

    // Copies `kCount` registers of each word, from `kFirst` on.
    template <int kFirst, int kCount>
    SC_INLINE void take(const State& from) {
      each_word([&](auto w) SC_ALWAYS {
        word[w][kFirst] = from.word[w][kFirst];
        if constexpr (kCount == 2) word[w][kFirst + 1] = from.word[w][kFirst + 1];
      });
    }

    // Absorbs the part of a text that belongs to register `v` of each word.
    SC_INLINE void update(int v, Reg text) {
      const Reg last = word[5][v];
      word[5][v] = Vector::aes_round(word[4][v], word[5][v]);
      word[4][v] = Vector::aes_round(word[3][v], word[4][v]);
      word[3][v] = Vector::aes_round(word[2][v], word[3][v]);
      word[2][v] = Vector::aes_round(word[1][v], word[2][v]);
      word[1][v] = Vector::aes_round(word[0][v], word[1][v]);
      word[0][v] = Vector::aes_round(last, Vector::bxor(word[0][v], text));
    }

    // An update of the beginning: all four states absorb the same, and what makes them differ.
    SC_INLINE void diversify(Reg same) {
      each_vector([&](auto v) SC_ALWAYS {
        const Reg context = Vector::load_private(kContexts + kVectorBytes * v);
        word[3][v] = Vector::bxor(word[3][v], context);
        word[5][v] = Vector::bxor(word[5][v], context);
        update(v, same);
      });
    }

    // What turns plaintext into ciphertext, and back.
    SC_INLINE Reg mask(int v) const {
      return Vector::and_xor(word[2][v], word[3][v], Vector::bxor(word[1][v], Vector::bxor(word[4][v], word[5][v])));
    }
  };

  // The parts of a record are functions that are not inlined, and keep the state in registers meanwhile. In one
  // function GCC would also keep it in memory, for the parts that follow, and write it there in every turn of a loop.

  // The state of a key and a nonce that has absorbed the associated data, which is private.
  static SC_APART void begin(State& state, const RawKey& key, const Nonce& nonce, const uint8_t* aad,
                             size_t aad_bytes) {
    State s;
    const __m128i k0 = key.half[0], k1 = key.half[1];
    const __m128i c0 = block_at(kFibonacci), c1 = block_at(kFibonacci + 16);
    const __m128i k0n0 = _mm_xor_si128(k0, nonce.half[0]), k1n1 = _mm_xor_si128(k1, nonce.half[1]);
    const Reg round[4] = {Vector::broadcast(k0), Vector::broadcast(k1), Vector::broadcast(k0n0),
                          Vector::broadcast(k1n1)};
    each_vector([&](auto v) SC_ALWAYS {
      s.word[0][v] = round[2];
      s.word[1][v] = round[3];
      s.word[2][v] = Vector::broadcast(c1);
      s.word[3][v] = Vector::broadcast(c0);
      s.word[4][v] = Vector::broadcast(_mm_xor_si128(k0, c0));
      s.word[5][v] = Vector::broadcast(_mm_xor_si128(k1, c1));
    });
#pragma GCC unroll 1
    for (int turn = 0; turn < 4; ++turn) {
      s.diversify(round[0]);
      s.diversify(round[1]);
      s.diversify(round[2]);
      s.diversify(round[3]);
    }
    size_t left = aad_bytes;
    for (; left >= kRate; left -= kRate, aad += kRate) {
      each_vector([&](auto v) SC_ALWAYS { s.update(v, Vector::load_private(aad + kVectorBytes * v)); });
    }
    if (left > 0) {
      Last last;
      copy_once(last.bytes, aad, left);
      each_vector([&](auto v) SC_ALWAYS { s.update(v, last.vector(v)); });
    }
    state = s;
  }

  // A multiple of kRate bytes of text. States that do not all fit into registers take turns, on pieces that stay in
  // the L1 cache: they are independent, and each touches blocks of its own.
  template <bool kSeal, Stores kStores>
  static SC_INLINE void crypt_whole(State& state, const uint8_t* in, size_t bytes, uint8_t* out,
                                    const char* prefetch) {
    if constexpr (kVectors <= 2) {
      crypt_some<kSeal, kStores, 0, kVectors>(state, in, bytes, out, prefetch);
    } else {
      static_assert(kStores == Stores::near, "stores past the caches are of whole lines");
      while (bytes > 0) {
        const size_t piece = bytes < kPiece ? bytes : kPiece;
        crypt_some<kSeal, kStores, 0, 2>(state, in, piece, out, prefetch);
        crypt_some<kSeal, kStores, 2, 2>(state, in, piece, out, nullptr);
        in += piece;
        out += piece;
        if (prefetch != nullptr) prefetch += piece;
        bytes -= piece;
      }
    }
  }

  // What belongs to `kCount` registers of each word, from `kFirst` on.
  template <bool kSeal, Stores kStores, int kFirst, int kCount>
  static SC_APART void crypt_some(State& state, const uint8_t* in, size_t bytes, uint8_t* out, const char* prefetch) {
    State s;
    s.template take<kFirst, kCount>(state);
    const auto crypt_vector = [&](auto v) SC_ALWAYS {
      const Reg from = Vector::load(in + kVectorBytes * v);
      const Reg to = Vector::bxor(from, s.mask(v));
      if constexpr (kStores == Stores::far) {
        Vector::stream(out + kVectorBytes * v, to);
      } else if constexpr (kStores == Stores::far_blocks) {
        Vector::stream_blocks(out + kVectorBytes * v, to);
      } else {
        Vector::store(out + kVectorBytes * v, to);
      }
      s.update(v, kSeal ? from : to);
    };
    for (; bytes > 0; bytes -= kRate, in += kRate, out += kRate) {
      if (kFirst == 0) __builtin_prefetch(in + kAhead, 0, 3);  // hardware prefetchers stop at the end of a page
      if (!kSeal && prefetch != nullptr) {
        __builtin_prefetch(prefetch, 1, 3);
        prefetch += kRate;
      }
      crypt_vector(Index<kFirst>{});
      if constexpr (kCount == 2) crypt_vector(Index<kFirst + 1>{});
    }
    state.template take<kFirst, kCount>(s);
  }

  // The last `n` bytes of a text, 1 to 63. What is absorbed is the plaintext, and zeros behind it.
  template <bool kSeal>
  static SC_INLINE void crypt_last(State& s, const uint8_t* in, size_t n, uint8_t* out, const char* prefetch) {
    if (!kSeal && prefetch != nullptr) __builtin_prefetch(prefetch, 1, 3);
    Last from, to;
    copy_once(from.bytes, in, n);
    each_vector([&](auto v) SC_ALWAYS { to.set(v, Vector::bxor(from.vector(v), s.mask(v))); });
    copy_once(out, to.bytes, n);
    if (!kSeal) copy_once(from.bytes, to.bytes, n);
    each_vector([&](auto v) SC_ALWAYS { s.update(v, from.vector(v)); });
  }

  // The tag.
  static SC_APART __m128i finish(const State& state, size_t aad_bytes, size_t bytes) {
    State s = state;
    const Reg lengths =
        Vector::broadcast(_mm_set_epi64x(static_cast<long long>(bytes * 8), static_cast<long long>(aad_bytes * 8)));
    Reg text[kVectors];
    each_vector([&](auto v) SC_ALWAYS { text[v] = Vector::bxor(s.word[3][v], lengths); });
#pragma GCC unroll 1
    for (int turn = 0; turn < 7; ++turn) {
      each_vector([&](auto v) SC_ALWAYS { s.update(v, text[v]); });
    }
    Reg sum = Vector::bxor(text[0], text[0]);
    each_vector([&](auto v) SC_ALWAYS {
      const Reg low = Vector::bxor(s.word[0][v], Vector::bxor(s.word[1][v], s.word[2][v]));
      const Reg high = Vector::bxor(s.word[3][v], Vector::bxor(s.word[4][v], s.word[5][v]));
      sum = Vector::bxor(sum, Vector::bxor(low, high));
    });
    return Vector::fold(sum);
  }
};

}  // namespace
}  // namespace securecoll::host
