// AES-256 (FIPS 197) in counter mode, by two look-up tables that are replicated for each lane.
//
// Words are columns as they lie in memory, first byte lowest. The tables are the usual T0 and T1, which join SubBytes
// and MixColumns; T2 and T3 are T0 and T1 rotated by 16 bits. Every lane looks up in a copy in its own bank of shared
// memory, so no look-up conflicts with another and none takes a time that depends on its index.
#pragma once
#include "platform.cuh"

namespace securecoll::cuda {

constexpr int kRounds = 14;
constexpr u32 kTableBytes = 65536;

// The S-box, computed by the compiler from its definition: the inverse in GF(2^8), then an affine map.
struct SBox {
  u8 value[256];

  SC_DEVICE constexpr SBox() : value() {
    // p runs through all nonzero elements as powers of 3, q through their inverses.
    u32 p = 1, q = 1;
    do {
      p = (p ^ p << 1 ^ (p >> 7) * 0x11b) & 0xff;
      q ^= q << 1;
      q ^= q << 2;
      q = (q ^ q << 4) & 0xff;
      q ^= (q >> 7) * 0x09;
      const u32 twice = q | q << 8;  // rotations are shifts of this
      value[p] = static_cast<u8>(0x63 ^ q ^ twice >> 7 ^ twice >> 6 ^ twice >> 5 ^ twice >> 4);
    } while (p != 1);
    value[0] = 0x63;
  }
};
__constant__ const SBox kSBox;

// Fills the tables. All threads take part; a barrier has to follow.
SC_DEVICE void build_tables(u8* tables) {
  const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (u32 i = threadIdx.x / 32; i < 256; i += warps) {
    const u32 s = kSBox.value[i], twice = s << 1 ^ (s >> 7) * 0x11b, thrice = twice ^ s;
    u32* const row = reinterpret_cast<u32*>(tables + 256 * i + 4 * lane);
    row[0] = twice | s << 8 | s << 16 | thrice << 24;
    row[32] = thrice | twice << 8 | s << 16 | s << 24;
  }
}

SC_DEVICE uint4 operator^(uint4 a, uint4 b) { return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w); }

SC_DEVICE u32 swap_bytes(u32 x) { return __byte_perm(x, 0, 0x0123); }
SC_DEVICE u32 rotate16(u32 x) { return __byte_perm(x, 0, 0x1032); }

// Round keys. Those of rounds 1 to 13 are kept rotated by 16 bits: they are added within the half of a column that is
// rotated anyway, where they cost no instruction of their own.
struct RoundKeys {
  uint4 key[kRounds + 2];  // the last is zero: it pads to 256 bytes
};

// One column of a middle round: of a, b, c and d it takes bytes 0, 1, 2 and 3.
SC_DEVICE u32 round_column(SharedAddress table, u32 a, u32 b, u32 c, u32 d, u32 rotated_key) {
  const u32 upright = table_load<0, 0>(a, table) ^ table_load<1, 1>(b, table);
  return upright ^ rotate16(table_load<2, 0>(c, table) ^ table_load<3, 1>(d, table) ^ rotated_key);
}

// The same for the last round, which has no MixColumns: byte 1 of a T0 entry is the S-box alone.
SC_DEVICE u32 last_column(SharedAddress table, u32 a, u32 b, u32 c, u32 d, u32 key) {
  const u32 low = __byte_perm(table_load<0, 0>(a, table), table_load<1, 0>(b, table), 0x0051);
  const u32 high = __byte_perm(table_load<2, 0>(c, table), table_load<3, 0>(d, table), 0x5100);
  return __byte_perm(low, high, 0x7610) ^ key;
}

SC_DEVICE u32 substitute_word(SharedAddress table, u32 x) { return last_column(table, x, x, x, x, 0); }

// What round 1 makes of the nonce, which all counter blocks of a record share. Only the counter's column is missing.
struct CounterBase {
  u32 column[4];
};

SC_DEVICE CounterBase counter_base(SharedAddress table, const RoundKeys& keys, const u32 (&nonce)[3]) {
  const uint4 whitening = keys.key[0], k = keys.key[1];
  const u32 a = nonce[0] ^ whitening.x, b = nonce[1] ^ whitening.y, c = nonce[2] ^ whitening.z;
  CounterBase base;
  base.column[0] =
      table_load<0, 0>(a, table) ^ table_load<1, 1>(b, table) ^ rotate16(table_load<2, 0>(c, table) ^ k.x);
  base.column[1] =
      table_load<0, 0>(b, table) ^ table_load<1, 1>(c, table) ^ rotate16(table_load<3, 1>(a, table) ^ k.y);
  base.column[2] =
      table_load<0, 0>(c, table) ^ rotate16(table_load<2, 0>(a, table) ^ table_load<3, 1>(b, table) ^ k.z);
  base.column[3] =
      table_load<1, 1>(a, table) ^ rotate16(table_load<2, 0>(b, table) ^ table_load<3, 1>(c, table) ^ k.w);
  return base;
}

// block[i] = AES(nonce || first + i * stride), counters big-endian. Blocks advance together, so that each round key is
// loaded once for all of them; the loop over rounds is not unrolled, so that it fits the instruction cache.
template <int N>
SC_DEVICE void encrypt_counters(SharedAddress table, const RoundKeys& keys, const CounterBase& base, u32 first,
                                u32 stride, uint4 (&block)[N]) {
  const u32 whitening = keys.key[0].w;
  SC_UNROLL for (int i = 0; i < N; ++i) {
    const u32 d = swap_bytes(first + i * stride) ^ whitening;
    block[i].x = base.column[0] ^ rotate16(table_load<3, 1>(d, table));
    block[i].y = base.column[1] ^ rotate16(table_load<2, 0>(d, table));
    block[i].z = base.column[2] ^ table_load<1, 1>(d, table);
    block[i].w = base.column[3] ^ table_load<0, 0>(d, table);
  }
  SC_UNROLL_NONE for (int round = 2; round < kRounds; ++round) {
    const uint4 k = keys.key[round];
    SC_UNROLL for (int i = 0; i < N; ++i) {
      const uint4 s = block[i];
      block[i].x = round_column(table, s.x, s.y, s.z, s.w, k.x);
      block[i].y = round_column(table, s.y, s.z, s.w, s.x, k.y);
      block[i].z = round_column(table, s.z, s.w, s.x, s.y, k.z);
      block[i].w = round_column(table, s.w, s.x, s.y, s.z, k.w);
    }
  }
  const uint4 k = keys.key[kRounds];
  SC_UNROLL for (int i = 0; i < N; ++i) {
    const uint4 s = block[i];
    block[i].x = last_column(table, s.x, s.y, s.z, s.w, k.x);
    block[i].y = last_column(table, s.y, s.z, s.w, s.x, k.y);
    block[i].z = last_column(table, s.z, s.w, s.x, s.y, k.z);
    block[i].w = last_column(table, s.w, s.x, s.y, s.z, k.w);
  }
}

SC_DEVICE uint4 encrypt_counter(SharedAddress table, const RoundKeys& keys, const CounterBase& base, u32 counter) {
  uint4 block[1];
  encrypt_counters(table, keys, base, counter, 0, block);
  return block[0];
}

// The key schedule (FIPS 197, section 5.2), by one thread. `raw` is the key's eight words.
SC_DEVICE void expand_round_keys(SharedAddress table, const u32 (&raw)[8], RoundKeys& keys) {
  u32* const word = &keys.key[0].x;
  SC_UNROLL for (int i = 0; i < 8; ++i) word[i] = raw[i];
  u32 constant = 1;
  for (int i = 8; i < 4 * (kRounds + 1); ++i) {
    u32 t = word[i - 1];
    if (i % 8 == 0) {
      t = substitute_word(table, __funnelshift_r(t, t, 8)) ^ constant;
      constant <<= 1;
    } else if (i % 8 == 4) {
      t = substitute_word(table, t);
    }
    word[i] = word[i - 8] ^ t;
  }
  for (int i = 4; i < 4 * kRounds; ++i) word[i] = rotate16(word[i]);
  keys.key[kRounds + 1] = make_uint4(0, 0, 0, 0);
}

}  // namespace securecoll::cuda
