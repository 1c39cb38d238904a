// Keys on the device, and how they get there: everything that is derived from one is computed where it is used.
#pragma once
#include "aes.cuh"
#include "ghash.cuh"
#include "text.cuh"

namespace securecoll::cuda {

// An expanded key, as it lies in device memory. All zero: no key, and nothing is sealed or opened with it, because
// whatever left it so has set Status::failed.
struct DeviceKey {
  RoundKeys keys;
  uint4 power[kPowers];  // H^(2^i)
  HashKey hash;
};
static_assert(sizeof(DeviceKey) <= kDeviceKeyBytes);

// A CTA's shared memory, but for the tables, which begin at the window's next multiple of 64 KiB.
struct KeyShared {
  RoundKeys keys;
  uint4 power[kPowers];
  uint4 inverse[kInverses];
  HashScratch scratch;
  u32 usable;
};

SC_DEVICE u8* tables_behind(void* shared) {
  return static_cast<u8*>(shared) + (kTableBytes - shared_address(shared) % kTableBytes);
}

// Shared memory outlives a kernel, and what comes to read it next is not ours to say. So the secrets in it are wiped:
// at most 17 KiB, in a hundredth of the time that sealing one macro-block takes. The tables are no secret.
template <class Shared>
SC_DEVICE void wipe(Shared& shared) {
  __syncthreads();
  volatile u32* const word = reinterpret_cast<volatile u32*>(&shared);
  for (u32 i = threadIdx.x; i < sizeof(Shared) / 4; i += blockDim.x) word[i] = 0;
}

SC_DEVICE bool is_failed(u64 status) { return *pointer_to<const volatile u32>(status) != 0; }

// Zero if and only if the blocks are equal; takes the same time whatever they are.
SC_DEVICE u32 difference(uint4 a, uint4 b) { return (a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w); }

// Opens the 32 bytes of a raw key, with a tag behind them and no associated data. False, and zeros, if the tag is not
// right. By one thread.
SC_DEVICE bool unwrap_key(SharedAddress table, const DeviceKey& wrapping, u64 sealed, const u32 (&nonce)[3],
                          uint4 (&raw)[2]) {
  const CounterBase base = counter_base(table, wrapping.keys, nonce);
  const uint4 a = load_bytes(sealed, kBlockBytes), b = load_bytes(sealed + 16, kBlockBytes);
  const uint4 tag = load_bytes(sealed + 32, kTagSize), h = wrapping.power[0];
  const uint4 lengths = make_uint4(0, 0, 0, swap_bytes(8 * 32));
  const uint4 hash = gf_multiply(gf_multiply(gf_multiply(a, h) ^ b, h) ^ lengths, h);
  const u32 wrong = difference(hash ^ encrypt_counter(table, wrapping.keys, base, 1), tag);
  const u32 keep = 0u - static_cast<u32>(wrong == 0);
  const uint4 mask = make_uint4(keep, keep, keep, keep);
  const uint4 plain[2] = {a ^ encrypt_counter(table, wrapping.keys, base, 2),
                          b ^ encrypt_counter(table, wrapping.keys, base, 3)};
  SC_UNROLL for (int i = 0; i < 2; ++i) {
    raw[i] = make_uint4(plain[i].x & mask.x, plain[i].y & mask.y, plain[i].z & mask.z, plain[i].w & mask.w);
  }
  return wrong == 0;
}

// One CTA makes one expanded key.
SC_DEVICE void expand_key(KeyShared& shared, u64 wrapping, u64 status, u64 sealed, const u32 (&nonce)[3], u64 key) {
  u8* const tables = tables_behind(&shared);
  build_tables(tables);
  __syncthreads();
  if (threadIdx.x == 0) {
    const SharedAddress table = table_lane(shared_address(tables), 0);
    uint4 raw[2];
    bool opened = true;
    if (wrapping == 0) {
      raw[0] = load_bytes(sealed, kBlockBytes);
      raw[1] = load_bytes(sealed + 16, kBlockBytes);
    } else {
      opened = unwrap_key(table, *pointer_to<const DeviceKey>(wrapping), sealed, nonce, raw);
    }
    if (!opened) atomic_add(pointer_to<u32>(status), 1);
    // A wrapping key that was left zero would open what anyone can seal: but then the status says so.
    shared.usable = opened && !is_failed(status);
    const u32 words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w, raw[1].x, raw[1].y, raw[1].z, raw[1].w};
    expand_round_keys(table, words, shared.keys);
    const u32 zero[3] = {0, 0, 0};
    const uint4 h = encrypt_counter(table, shared.keys, counter_base(table, shared.keys, zero), 0);
    uint4 p = h;
    SC_UNROLL_NONE for (u32 i = 0; i < kPowers; ++i) {
      shared.power[i] = p;
      p = gf_multiply(p, p);
    }
    p = gf_invert(h);
    SC_UNROLL_NONE for (u32 i = 0; i < kInverses; ++i) {
      shared.inverse[i] = p;
      p = gf_multiply(p, p);
    }
  }
  __syncthreads();
  if (shared.usable) {
    DeviceKey& out = *pointer_to<DeviceKey>(key);
    if (threadIdx.x < kRounds + 2) out.keys.key[threadIdx.x] = shared.keys.key[threadIdx.x];
    if (threadIdx.x < kPowers) out.power[threadIdx.x] = shared.power[threadIdx.x];
    expand_hash_key(out.hash, shared.power, shared.inverse, shared.scratch);
  } else {
    for (u32 i = threadIdx.x; i < sizeof(DeviceKey) / 16; i += blockDim.x) {
      pointer_to<uint4>(key)[i] = make_uint4(0, 0, 0, 0);
    }
  }
  wipe(shared);
}

}  // namespace securecoll::cuda
