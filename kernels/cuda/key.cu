// Key setup.
#include "key.cuh"

using namespace securecoll::cuda;

SC_KERNEL(sc_expand_key, KeyArgs, kThreads, 1) {
  SC_SHARED(KeyShared, shared);
  const u32 i = blockIdx.x;
  expand_key(shared, args.wrapping, args.status, args.sealed[i], args.nonce[i], args.keys[i]);
}
