// As probes.cu, for a commit.
#include "cuda/commit.cu"
#include "probe.cuh"

SC_KERNEL(probe_commit, ProbeArgs, kThreads, 1) {
  SC_SHARED(CryptShared, shared);
  commit_record(shared, args.record, Reduction{}, share_of_probe(args));
  show(shared, args.left_behind);
}

struct FusableArgs {
  u64 table;  // a byte for each operation of each dtype
};

SC_KERNEL(probe_fusable, FusableArgs, 1, 1) {
  constexpr u32 kOps = securecoll::kRedOps, kCases = securecoll::kDTypes * kOps;
  for (u32 i = 0; i < kCases; ++i) {
    pointer_to<u8>(args.table)[i] = fusable(static_cast<u8>(i / kOps), static_cast<u8>(i % kOps));
  }
}
