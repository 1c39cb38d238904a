// GHASH by multiplications of GF(2^128), for GPUs without 1-bit tensor cores.
//
// Every thread keeps a sum of its own over its blocks, which lie 32 apart: for each, the sum is multiplied by H^32,
// and at the end of a macro-block by what leads to the thread's first block in the next. In the end each thread's sum
// still lacks the factor for the place of its first block.
#pragma once
#include "ghash.cuh"

namespace securecoll::cuda {

struct HashKey {
  uint4 row[kThreads];  // H^-(256 * warp + lane)
  uint4 step;           // H^32
  uint4 leap;           // H^(2048 - 7 * 32)
};

struct HashShared {
  uint4 step, leap;
};

struct Hash {
  uint4 sum;
};

SC_DEVICE void load_hash(HashShared& shared, const HashKey& key) {
  if (threadIdx.x == 0) {
    shared.step = key.step;
    shared.leap = key.leap;
  }
}

SC_DEVICE void clear_hash(Hash& hash) { hash.sum = make_uint4(0, 0, 0, 0); }

// Takes the warp's blocks of one macro-block.
SC_DEVICE void absorb(Hash& hash, uint4 (&block)[kBlocks], const HashShared& shared) {
  SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) {
    hash.sum = gf_multiply(hash.sum ^ block[b], b + 1 < kBlocks ? shared.step : shared.leap);
  }
}

// This thread's share of what was absorbed: the hash is the sum over all threads of the CTA. They all take part.
SC_DEVICE uint4 hash_share(const Hash& hash, HashShared&, const HashKey& key) {
  return gf_multiply(hash.sum, key.row[threadIdx.x]);
}

struct HashScratch {};

// All threads take part; barriers stand before and after.
SC_DEVICE void expand_hash_key(HashKey& key, const uint4* power, const uint4* inverse, HashScratch&) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  key.row[threadIdx.x] = gf_power(inverse, kWarpBlocks * warp + lane);
  if (threadIdx.x == 0) {
    key.step = power[5];
    key.leap = gf_multiply(power[kMacroBits], gf_power(inverse, 32 * (kBlocks - 1)));
  }
}

}  // namespace securecoll::cuda
