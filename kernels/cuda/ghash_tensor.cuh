// GHASH on 1-bit tensor cores.
//
// Multiplying by a constant of GF(2^128) is a 128 x 128 matrix over GF(2). In binary_mma() a row of A has 256 bits, of
// which lane c of the four that share the row gives words c and c + 4. So one product takes the first halves of four
// lanes' blocks, as they lie, and a second one the second halves; each lane's block meets the matrix that B holds at
// its place, and the counts are sums over all four. Two products do that for 16 rows and 8 of the 128 columns, and the
// lowest bit of a count is the sum in GF(2).
//
// A row keeps its own sum. For each macro-block it is multiplied by H^2048 (added to the block of lane c = 0, whose
// matrix is that one) and the blocks of lane c by H^(2048 - c). In the end each row's sum still lacks a factor, which
// is H^(-4 * row): rows begin four blocks apart.
#pragma once
#include "ghash.cuh"

namespace securecoll::cuda {

constexpr u32 kTiles = kBlocks / 2;      // of 16 rows, for each warp
constexpr u32 kRows = kMacroBlocks / 4;  // row 64 * warp + 8 * block + lane / 4
constexpr u32 kColumnSets = 16;          // of 8 columns
constexpr u32 kSetsInFlight = 4;

struct HashKey {
  uint4 row[kRows];                  // H^(-4 * row)
  uint4 fragment[kColumnSets * 32];  // as lanes hold them: the columns of four matrices, 128 bits each
};

struct HashShared {
  uint4 fragment[kColumnSets * 32];
  u32 row[kRows][4];
};

struct Hash {
  u32 sum[kTiles][2];  // word lane % 4 of rows lane / 4 and lane / 4 + 8 of each tile
};

// The column that lane / 4 = n has in a set, so that the two columns whose counts a lane gets from one instruction are
// two neighbouring bits of the word that it keeps.
SC_DEVICE u32 column_of(u32 set, u32 n) { return 32 * (n / 2) + 2 * set + n % 2; }

SC_DEVICE void load_hash(HashShared& shared, const HashKey& key) {
  for (u32 i = threadIdx.x; i < kColumnSets * 32; i += kThreads) shared.fragment[i] = key.fragment[i];
}

SC_DEVICE void clear_hash(Hash& hash) {
  SC_UNROLL for (u32 t = 0; t < kTiles; ++t) hash.sum[t][0] = hash.sum[t][1] = 0;
}

// Takes the warp's blocks of one macro-block. All lanes of the warp take part.
SC_DEVICE void absorb(Hash& hash, uint4 (&block)[kBlocks], const HashShared& shared) {
  const u32 lane = threadIdx.x % 32, first = lane & ~3u;
  const u32 mine = 0u - static_cast<u32>(lane == first);
  SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) {
    const u32 word = hash.sum[b / 2][b % 2];
    block[b].x ^= __shfl_sync(0xffffffffu, word, first) & mine;
    block[b].y ^= __shfl_sync(0xffffffffu, word, first + 1) & mine;
    block[b].z ^= __shfl_sync(0xffffffffu, word, first + 2) & mine;
    block[b].w ^= __shfl_sync(0xffffffffu, word, first + 3) & mine;
  }
  // Not unrolled as a whole: the compiler would load all fragments first, and run out of registers.
  SC_UNROLL_NONE for (u32 group = 0; group < kColumnSets; group += kSetsInFlight) {
    SC_UNROLL for (u32 s = 0; s < kSetsInFlight; ++s) {
      const uint4 f = shared.fragment[32 * (group + s) + lane];
      const u32 low[2] = {f.x, f.y}, high[2] = {f.z, f.w};
      SC_UNROLL for (u32 t = 0; t < kTiles; ++t) {
        const uint4 p = block[2 * t], q = block[2 * t + 1];
        const u32 first_half[4] = {p.x, q.x, p.y, q.y}, second_half[4] = {p.z, q.z, p.w, q.w};
        int count[4] = {0, 0, 0, 0};
        binary_mma(count, first_half, low);
        binary_mma(count, second_half, high);
        // Sixteen sets push two bits each, from the top: the first ends up lowest.
        u32(&sum)[2] = hash.sum[t];
        sum[0] = __funnelshift_r(__funnelshift_r(sum[0], count[0], 1), count[1], 1);
        sum[1] = __funnelshift_r(__funnelshift_r(sum[1], count[2], 1), count[3], 1);
      }
    }
  }
}

// This thread's share of what was absorbed: the hash is the sum over all threads of the CTA. They all take part.
SC_DEVICE uint4 hash_share(const Hash& hash, HashShared& shared, const HashKey& key) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) {
    shared.row[64 * warp + 8 * b + lane / 4][lane % 4] = hash.sum[b / 2][b % 2];
  }
  __syncthreads();
  uint4 share = make_uint4(0, 0, 0, 0);
  for (u32 i = threadIdx.x; i < kRows; i += kThreads) {
    const u32(&sum)[4] = shared.row[i];
    share = share ^ gf_multiply(make_uint4(sum[0], sum[1], sum[2], sum[3]), key.row[i]);
  }
  return share;
}

// Scratch of key setup, in shared memory: the products of H^(2048 - c) with 1, x, x^2, .., as the matrices' rows.
struct HashScratch {
  uint4 image[4][128];
};

// All threads take part; barriers stand before and after.
SC_DEVICE void expand_hash_key(HashKey& key, const uint4* power, const uint4* inverse, HashScratch& scratch) {
  for (u32 i = threadIdx.x; i < kRows; i += kThreads) key.row[i] = gf_power(inverse + 2, i);
  for (u32 i = threadIdx.x; i < 4 * 128; i += kThreads) {
    // Row k of a matrix is the product with the power of x that bit k of a block, as it lies, stands for.
    const u32 c = i / 128, k = i % 128, coefficient = k ^ 7;
    uint4 product = gf_multiply(power[kMacroBits], gf_power(inverse, c));
    SC_UNROLL_NONE for (u32 n = 0; n < coefficient; ++n) product = gf_times_x(product);
    scratch.image[c][k] = product;
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < kColumnSets * 32; i += kThreads) {
    const u32 lane = i % 32, column = column_of(i / 32, lane / 4);
    const u32* const word = &scratch.image[lane % 4][0].x + column / 32;
    u32 bits[4] = {0, 0, 0, 0};
    SC_UNROLL for (u32 w = 0; w < 4; ++w) {
      SC_UNROLL_NONE for (u32 k = 0; k < 32; ++k) bits[w] |= (word[4 * (32 * w + k)] >> column % 32 & 1) << k;
    }
    key.fragment[i] = make_uint4(bits[0], bits[1], bits[2], bits[3]);
  }
}

}  // namespace securecoll::cuda
