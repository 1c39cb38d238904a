// AES-256-GCM (NIST SP 800-38D) of records, by one CTA each or by several.
//
// A record's hashed blocks are its associated data, its text and a block of lengths, dealt out as ghash.cuh says. What
// is hashed is what was stored, or what will be opened, from the same registers: each byte of a record is read once
// and written once, whoever else can write there.
#pragma once
#include "key.cuh"

namespace securecoll::cuda {

struct Associated {
  const u8* data;
  u32 bytes;
};

// Shared memory of a CTA that seals or opens, but for the tables.
struct CryptShared {
  RoundKeys keys[2];
  CounterBase base[2];  // where registers do not hold them
  HashShared hash;
  uint4 part[kWarps];
  u32 flag;
};
static_assert(sizeof(CryptShared) + 1024 <= kTableBytes && sizeof(KeyShared) + 1024 <= kTableBytes);
static_assert(kSharedBytes == 2 * kTableBytes);

// What a CTA does of a record, together with the others of that record.
struct Share {
  u64 status;
  u64 partial;  // of the record; see kPartialBytes
  u32 part, parts;
};

// Kernels that encrypt are compiled as if a CTA had 384 threads, which leaves each thread 168 registers: with more the
// compiler only keeps more look-ups in flight than shared memory can serve.
constexpr u32 kRegisterThreads = 384;

// A launch has one CTA for each part of each record.
template <class Args>
SC_DEVICE u32 record_of_cta(const Args& args) {
  return blockIdx.x / args.parts;
}
template <class Args>
SC_DEVICE Share share_of_cta(const Args& args) {
  const u64 partial = args.partials + static_cast<u64>(kPartialBytes) * record_of_cta(args);
  return {args.status, partial, blockIdx.x % args.parts, args.parts};
}
SC_DEVICE Associated associated_of(const Record& record) { return {record.associated, sizeof record.associated}; }

SC_DEVICE u32 blocks_of(u32 bytes) { return bytes / kBlockBytes + (bytes % kBlockBytes != 0); }

// Bytes of text block i, which is not above the last.
SC_DEVICE u32 bytes_of_block(u32 text_bytes, i32 i) {
  const u32 rest = text_bytes - kBlockBytes * static_cast<u32>(i);
  return rest < kBlockBytes ? rest : kBlockBytes;
}

SC_DEVICE bool is_text(u32 text_bytes, i32 i) { return i >= 0 && static_cast<u32>(i) < blocks_of(text_bytes); }

SC_DEVICE u64 block_address(u64 base, i32 i) { return base + static_cast<u64>(kBlockBytes) * static_cast<u32>(i); }

// Where a record's blocks lie in its macro-blocks.
struct Shape {
  u32 macros;
  i32 origin;  // number of the text block at position 0; below zero are padding and associated data
  i32 framed;  // number of the first block that is not padding
  i32 whole;   // number of text blocks of 16 bytes

  SC_DEVICE Shape(u32 text_bytes, u32 associated_bytes) {
    const u32 blocks = blocks_of(associated_bytes) + blocks_of(text_bytes) + 1;
    macros = (blocks + kMacroBlocks - 1) / kMacroBlocks;
    framed = -static_cast<i32>(blocks_of(associated_bytes));
    origin = framed + static_cast<i32>(blocks - macros * kMacroBlocks);
    whole = static_cast<i32>(text_bytes / kBlockBytes);
  }
  // Of a warp's blocks from number `first` on: whether all are padding, and whether all are whole text.
  SC_DEVICE bool is_padding(i32 first) const { return first + static_cast<i32>(kWarpBlocks) <= framed; }
  SC_DEVICE bool is_whole(i32 first) const { return first >= 0 && first + static_cast<i32>(kWarpBlocks) <= whole; }
};

// The hashed block where no text is: a block of associated data, the lengths, or padding.
__device__ __noinline__ inline uint4 framing(u32 text_bytes, Associated associated, i32 i) {
  if (i == static_cast<i32>(blocks_of(text_bytes))) {
    return make_uint4(swap_bytes(associated.bytes >> 29), swap_bytes(associated.bytes << 3),
                      swap_bytes(text_bytes >> 29), swap_bytes(text_bytes << 3));
  }
  const i32 a = i + static_cast<i32>(blocks_of(associated.bytes));
  if (i >= 0 || a < 0) return make_uint4(0, 0, 0, 0);
  return load_by<u8>(block_address(reinterpret_cast<u64>(associated.data), a), bytes_of_block(associated.bytes, a));
}

// ---- one CTA ----

SC_DEVICE void load_round_keys(RoundKeys& to, const RoundKeys& from) {
  if (threadIdx.x < kRounds + 2) to.key[threadIdx.x] = from.key[threadIdx.x];
}

SC_DEVICE uint4 sum_over_warp(uint4 x) {
  SC_UNROLL for (int lanes = 16; lanes != 0; lanes /= 2) {
    x.x ^= __shfl_xor_sync(0xffffffffu, x.x, lanes);
    x.y ^= __shfl_xor_sync(0xffffffffu, x.y, lanes);
    x.z ^= __shfl_xor_sync(0xffffffffu, x.z, lanes);
    x.w ^= __shfl_xor_sync(0xffffffffu, x.w, lanes);
  }
  return x;
}

// The sum over all threads of the CTA, in all of them.
SC_DEVICE uint4 sum_over_cta(uint4 x, uint4 (&part)[kWarps]) {
  x = sum_over_warp(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  x = part[0];
  SC_UNROLL for (u32 w = 1; w < kWarps; ++w) x = x ^ part[w];
  return x;
}

// H to the number of blocks in that many macro-blocks, by one warp.
SC_DEVICE uint4 power_of_macros(const uint4* power, u32 macros) {
  const u32 lane = threadIdx.x % 32;
  uint4 factor = gf_one();
  if (lane < kPowers - kMacroBits && (macros >> lane & 1)) factor = power[kMacroBits + lane];
  SC_UNROLL_NONE for (u32 lanes = 1; lanes < 32 && macros >> lanes != 0; lanes *= 2) {
    const uint4 other =
        make_uint4(__shfl_xor_sync(0xffffffffu, factor.x, lanes), __shfl_xor_sync(0xffffffffu, factor.y, lanes),
                   __shfl_xor_sync(0xffffffffu, factor.z, lanes), __shfl_xor_sync(0xffffffffu, factor.w, lanes));
    factor = gf_multiply(factor, other);
  }
  return factor;
}

// Joins the hashes of a record's CTAs. Each gives that of its run of macro-blocks, `behind` of which follow it in the
// record. True in the CTA that comes last, for whose thread 0 `hash` becomes that of the record.
SC_DEVICE bool join_parts(CryptShared& shared, const DeviceKey& key, const Share& share, u32 behind, uint4& hash) {
  if (share.parts == 1) return true;
  u32* const arrived = pointer_to<u32>(share.partial + kBlockBytes * kMaxParts);
  if (threadIdx.x < 32) {
    hash = gf_multiply(hash, power_of_macros(key.power, behind));
    if (threadIdx.x == 0) {
      *pointer_to<uint4>(share.partial + kBlockBytes * share.part) = hash;
      threadfence();
      shared.flag = atomic_add(arrived, 1) == share.parts - 1;
    }
  }
  __syncthreads();
  if (!shared.flag) return false;
  threadfence();
  if (threadIdx.x < 32) {
    hash = make_uint4(0, 0, 0, 0);
    for (u32 i = threadIdx.x; i < share.parts; i += 32) {
      hash = hash ^ load_by<u32>(share.partial + kBlockBytes * i, kBlockBytes);
    }
    hash = sum_over_warp(hash);
    if (threadIdx.x == 0) atomic_add(arrived, 0u - share.parts);  // back to zero, for the next launch
  }
  return true;
}

// The CTA's run of macro-blocks.
struct Run {
  u32 begin, end;
  SC_DEVICE Run(u32 macros, const Share& share)
      : begin(macros * share.part / share.parts), end(macros * (share.part + 1) / share.parts) {}
};

// The text block of the warp's first lane in a macro-block.
SC_DEVICE i32 first_of_warp(u32 macro) {
  return static_cast<i32>(macro * kMacroBlocks + threadIdx.x / 32 * kWarpBlocks);
}

// Text block i is encrypted with counter i + 2; counter 1 is the tag's.
SC_DEVICE void keystream(SharedAddress table, const RoundKeys& keys, const CounterBase& base, i32 first,
                         uint4 (&block)[kBlocks]) {
  encrypt_counters(table, keys, base, static_cast<u32>(first) + 2, 32, block);
}

// ---- sealing ----

// Block i of a warp's run that is not all whole text, encrypted: stores it, and gives what is hashed.
__device__ __noinline__ inline uint4 seal_edge(const Record& record, Associated associated, i32 i, uint4 encrypted) {
  if (!is_text(record.bytes, i)) return framing(record.bytes, associated, i);
  const u32 n = bytes_of_block(record.bytes, i);
  const uint4 sealed = first_bytes(encrypted, n);
  store_bytes(block_address(record.output, i), sealed, n);
  return sealed;
}

// Block i of the text at any alignment, whose keystream is given, encrypted or decrypted. Beyond the text, nothing of
// use.
__device__ __noinline__ inline uint4 crypt_edge(u64 text, u32 text_bytes, i32 i, uint4 keystream) {
  if (!is_text(text_bytes, i)) return keystream;
  return load_bytes(block_address(text, i), bytes_of_block(text_bytes, i)) ^ keystream;
}

// Encrypts or decrypts the warp's blocks from `first` on, of which `block` is the keystream.
SC_DEVICE void crypt_blocks(u64 text, u32 text_bytes, const Shape& shape, i32 first, uint4 (&block)[kBlocks]) {
  const i32 mine = first + static_cast<i32>(threadIdx.x % 32);
  if (shape.is_whole(first) && text % 16 == 0) {
    const uint4* const in = pointer_to<const uint4>(text) + mine;
    SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) block[b] = block[b] ^ load_stream(in + 32 * b);
  } else {
    SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) {
      block[b] = crypt_edge(text, text_bytes, mine + static_cast<i32>(32 * b), block[b]);
    }
  }
}

// Stores the warp's encrypted blocks from `first` on. What is in them in the end is what is hashed.
SC_DEVICE void store_sealed(const Record& record, Associated associated, const Shape& shape, i32 first,
                            uint4 (&block)[kBlocks]) {
  const i32 mine = first + static_cast<i32>(threadIdx.x % 32);
  if (shape.is_whole(first)) {
    uint4* const out = pointer_to<uint4>(record.output) + mine;
    SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) store_stream(out + 32 * b, block[b]);
  } else {
    SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) {
      block[b] = seal_edge(record, associated, mine + static_cast<i32>(32 * b), block[b]);
    }
  }
}

// Zeros in the place of a run of ciphertext.
SC_DEVICE void blank(const Record& record, const Shape& shape, const Run& run) {
  for (u32 q = run.begin * kMacroBlocks + threadIdx.x; q < run.end * kMacroBlocks; q += kThreads) {
    const i32 i = static_cast<i32>(q) + shape.origin;
    if (is_text(record.bytes, i)) {
      store_bytes(block_address(record.output, i), make_uint4(0, 0, 0, 0), bytes_of_block(record.bytes, i));
    }
  }
}

// The end of sealing: the last of the record's CTAs stores the tag, with round keys shared.keys[0].
SC_DEVICE void finish_seal(CryptShared& shared, SharedAddress table, const CounterBase& base, const DeviceKey& key,
                           const Record& record, const Share& share, const Shape& shape, const Run& run,
                           const Hash& hash) {
  uint4 total = sum_over_cta(hash_share(hash, shared.hash, key.hash), shared.part);
  if (join_parts(shared, key, share, shape.macros - run.end, total) && threadIdx.x == 0) {
    // If anything failed meanwhile, this record gets no tag.
    const u32 keep = is_failed(share.status) ? 0 : ~0u;
    const uint4 tag = total ^ encrypt_counter(table, shared.keys[0], base, 1);
    store_bytes(record.output + record.bytes, make_uint4(tag.x & keep, tag.y & keep, tag.z & keep, tag.w & keep),
                kTagSize);
  }
  wipe(shared);
}

SC_DEVICE void seal_record(CryptShared& shared, const Record& record, Associated associated, const Share& share) {
  const DeviceKey& key = *pointer_to<const DeviceKey>(record.key);
  u8* const tables = tables_behind(&shared);
  build_tables(tables);
  load_round_keys(shared.keys[0], key.keys);
  load_hash(shared.hash, key.hash);
  if (threadIdx.x == 0) shared.flag = is_failed(share.status);
  __syncthreads();
  const bool failed = shared.flag;

  const u32 lane = threadIdx.x % 32;
  const SharedAddress table = table_lane(shared_address(tables), lane);
  const CounterBase base = counter_base(table, shared.keys[0], record.nonce);
  const Shape shape(record.bytes, associated.bytes);
  const Run run(shape.macros, share);

  Hash hash;
  clear_hash(hash);
  if (failed) {
    blank(record, shape, run);
  } else {
    for (u32 macro = run.begin; macro < run.end; ++macro) {
      const i32 first = first_of_warp(macro) + shape.origin;
      if (shape.is_padding(first)) continue;
      uint4 block[kBlocks];
      keystream(table, shared.keys[0], base, first + static_cast<i32>(lane), block);
      crypt_blocks(record.input, record.bytes, shape, first, block);
      store_sealed(record, associated, shape, first, block);
      absorb(hash, block, shared.hash);
    }
  }
  finish_seal(shared, table, base, key, record, share, shape, run, hash);
}

// ---- verifying ----

__device__ __noinline__ inline uint4 verify_edge(const Record& record, Associated associated, i32 i) {
  if (!is_text(record.bytes, i)) return framing(record.bytes, associated, i);
  const u32 n = bytes_of_block(record.bytes, i);
  const uint4 sealed = load_bytes(block_address(record.input, i), n);
  if (record.copy != 0) store_bytes(block_address(record.copy, i), sealed, n);
  return sealed;
}

SC_DEVICE void report_forgery(u64 status, u32 index) {
  atomic_max(pointer_to<u32>(status) + 1, ~index);
  threadfence();
  atomic_add(pointer_to<u32>(status), 1);
}

SC_DEVICE void verify_record(CryptShared& shared, const Record& record, Associated associated, const Share& share) {
  const DeviceKey& key = *pointer_to<const DeviceKey>(record.key);
  load_hash(shared.hash, key.hash);
  __syncthreads();
  const u32 lane = threadIdx.x % 32;
  const Shape shape(record.bytes, associated.bytes);
  const Run run(shape.macros, share);

  Hash hash;
  clear_hash(hash);
  for (u32 macro = run.begin; macro < run.end; ++macro) {
    const i32 first = first_of_warp(macro) + shape.origin;
    if (shape.is_padding(first)) continue;
    uint4 block[kBlocks];
    if (shape.is_whole(first)) {
      const uint4* const in = pointer_to<const uint4>(record.input) + first + lane;
      SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) block[b] = load_stream(in + 32 * b);
      if (record.copy != 0) {
        uint4* const copy = pointer_to<uint4>(record.copy) + first + lane;
        SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) store_stream(copy + 32 * b, block[b]);
      }
    } else {
      SC_UNROLL for (u32 b = 0; b < kBlocks; ++b) {
        block[b] = verify_edge(record, associated, first + static_cast<i32>(32 * b + lane));
      }
    }
    absorb(hash, block, shared.hash);
  }
  uint4 total = sum_over_cta(hash_share(hash, shared.hash, key.hash), shared.part);
  const bool last = join_parts(shared, key, share, shape.macros - run.end, total);
  if (last) {
    // Only the CTA that holds the whole hash needs AES, for one block.
    u8* const tables = tables_behind(&shared);
    build_tables(tables);
    load_round_keys(shared.keys[0], key.keys);
    __syncthreads();
    if (threadIdx.x == 0) {
      const SharedAddress table = table_lane(shared_address(tables), lane);
      const CounterBase base = counter_base(table, shared.keys[0], record.nonce);
      const uint4 tag = load_bytes(record.input + record.bytes, kTagSize);
      if (difference(tag, total ^ encrypt_counter(table, shared.keys[0], base, 1)) != 0) {
        report_forgery(share.status, record.index);
      }
    }
  }
  wipe(shared);
}

}  // namespace securecoll::cuda
