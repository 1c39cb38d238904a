// Committing, and sealing what was committed.
#include "commit.cuh"

using namespace securecoll::cuda;

SC_KERNEL(sc_commit, CryptArgs, kRegisterThreads, 1) {
  SC_SHARED(CryptShared, shared);
  commit_record(shared, args.record[record_of_cta(args)], args.reduction, share_of_cta(args));
}

SC_KERNEL(sc_commit_seal, ResealArgs, kRegisterThreads, 1) {
  SC_SHARED(CryptShared, shared);
  const u32 i = record_of_cta(args);
  commit_and_seal_record(shared, args.open[i], args.reduction, args.seal[i], associated_of(args.seal[i]),
                         share_of_cta(args));
}
