// Committing what was verified: decrypted, reduced if that is asked for, stored, and maybe sealed again.
//
// Verification and commit are two launches on one stream. So a commit knows of every tag of its records, no CTA waits
// for another, and nothing unverified is ever stored, added or sealed.
#pragma once
#include "gcm.cuh"
#include "reduce.cuh"

namespace securecoll::cuda {

// What becomes of block i of the plaintext: it is reduced, if that is asked for, and stored. Gives the result.
__device__ __noinline__ inline uint4 finish_block(const Record& record, const Reduction& reduction, i32 i,
                                                  uint4 plain) {
  const u32 n = bytes_of_block(record.bytes, i);
  uint4 result = plain;
  if (reduction.dtype == static_cast<u8>(DType::none)) {
    if (record.output != 0) store_bytes(block_address(record.output, i), plain, n);
    return result;
  }
  const ReduceBlock block{reduction, plain, record.operand, record.output, i, n, result};
  if (!apply(reduction, block)) trap();
  return result;
}

// Where a commit finds the ciphertext that was verified.
SC_DEVICE u64 verified_text(const Record& record) { return record.copy != 0 ? record.copy : record.input; }

// Decrypts, reduces and stores, if nothing has failed.
SC_DEVICE void commit_record(CryptShared& shared, const Record& record, const Reduction& reduction,
                             const Share& share) {
  if (threadIdx.x == 0) shared.flag = is_failed(share.status);
  __syncthreads();
  if (shared.flag) return;
  const DeviceKey& key = *pointer_to<const DeviceKey>(record.key);
  u8* const tables = tables_behind(&shared);
  build_tables(tables);
  load_round_keys(shared.keys[0], key.keys);
  __syncthreads();
  const u32 lane = threadIdx.x % 32;
  const SharedAddress table = table_lane(shared_address(tables), lane);
  const CounterBase base = counter_base(table, shared.keys[0], record.nonce);
  const Shape shape(record.bytes, sizeof record.associated);
  const Run run(shape.macros, share);
  const bool plain = reduction.dtype == static_cast<u8>(DType::none) && record.output % 16 == 0;

  for (u32 macro = run.begin; macro < run.end; ++macro) {
    const i32 first = first_of_warp(macro) + shape.origin;
    if (shape.is_padding(first)) continue;
    uint4 block[kBlocks];
    keystream(table, shared.keys[0], base, first + static_cast<i32>(lane), block);
    crypt_blocks(verified_text(record), record.bytes, shape, first, block);
    if (plain && shape.is_whole(first)) {
      uint4* const out = pointer_to<uint4>(record.output) + first + lane;
      SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) store_stream(out + 32 * b, block[b]);
    } else {
      SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) {
        const i32 i = first + static_cast<i32>(32 * b + lane);
        if (is_text(record.bytes, i)) finish_block(record, reduction, i, block[b]);
      }
    }
  }
  wipe(shared);
}

SC_DEVICE void commit_and_seal_record(CryptShared& shared, const Record& open, const Reduction& reduction,
                                      const Record& seal, Associated associated, const Share& share) {
  const DeviceKey& open_key = *pointer_to<const DeviceKey>(open.key);
  const DeviceKey& seal_key = *pointer_to<const DeviceKey>(seal.key);
  u8* const tables = tables_behind(&shared);
  build_tables(tables);
  load_round_keys(shared.keys[0], seal_key.keys);
  load_round_keys(shared.keys[1], open_key.keys);
  load_hash(shared.hash, seal_key.hash);
  if (threadIdx.x == 0) shared.flag = is_failed(share.status);
  __syncthreads();
  const bool failed = shared.flag;

  const u32 lane = threadIdx.x % 32;
  const SharedAddress table = table_lane(shared_address(tables), lane);
  if (threadIdx.x == 0) {
    shared.base[0] = counter_base(table, shared.keys[0], seal.nonce);
    shared.base[1] = counter_base(table, shared.keys[1], open.nonce);
  }
  __syncthreads();
  const Shape shape(seal.bytes, associated.bytes);
  const Run run(shape.macros, share);
  const bool passes_on = reduction.dtype == static_cast<u8>(DType::none) && open.output == 0;

  Hash hash;
  clear_hash(hash);
  if (failed) {
    blank(seal, shape, run);
  } else {
    for (u32 macro = run.begin; macro < run.end; ++macro) {
      const i32 first = first_of_warp(macro) + shape.origin;
      if (shape.is_padding(first)) continue;
      uint4 block[kBlocks];
      keystream(table, shared.keys[1], shared.base[1], first + static_cast<i32>(lane), block);
      crypt_blocks(verified_text(open), open.bytes, shape, first, block);
      if (!passes_on) {
        SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) {
          const i32 i = first + static_cast<i32>(32 * b + lane);
          if (is_text(open.bytes, i)) block[b] = finish_block(open, reduction, i, block[b]);
        }
      }
      uint4 stream[kBlocks];
      keystream(table, shared.keys[0], shared.base[0], first + static_cast<i32>(lane), stream);
      SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) block[b] = block[b] ^ stream[b];
      store_sealed(seal, associated, shape, first, block);
      absorb(hash, block, shared.hash);
    }
  }
  finish_seal(shared, table, shared.base[0], seal_key, seal, share, shape, run, hash);
}

}  // namespace securecoll::cuda
