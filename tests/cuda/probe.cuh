// How the tests' own kernels are launched: associated data of any length, and a look at what stays in shared memory.
#pragma once
#include "cuda/gcm.cuh"

using namespace securecoll::cuda;

struct ProbeArgs {
  u64 status;
  u64 partials;
  u64 associated;
  u64 left_behind;  // room for kSharedBytes / 2, or absent: what is in shared memory at the end
  u32 associated_bytes;
  u32 parts;
  Record record;
};

namespace {

SC_DEVICE Share share_of_probe(const ProbeArgs& args) { return {args.status, args.partials, blockIdx.x, args.parts}; }

SC_DEVICE Associated associated_of_probe(const ProbeArgs& args) {
  return {pointer_to<const u8>(args.associated), args.associated_bytes};
}

template <class Shared>
SC_DEVICE void show(const Shared& shared, u64 room) {
  if (room == 0) return;
  __syncthreads();
  for (u32 i = threadIdx.x; i < sizeof(Shared) / 4; i += blockDim.x) {
    pointer_to<u32>(room)[i] = reinterpret_cast<const u32*>(&shared)[i];
  }
}

}  // namespace
