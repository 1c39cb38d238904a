// The kernels that know a key, and what tests launch in their place.
#include "cuda/key.cu"
#include "cuda/seal.cu"
#include "probe.cuh"

SC_KERNEL(probe_seal, ProbeArgs, kThreads, 1) {
  SC_SHARED(CryptShared, shared);
  seal_record(shared, args.record, associated_of_probe(args), share_of_probe(args));
  show(shared, args.left_behind);
}

SC_KERNEL(probe_verify, ProbeArgs, kThreads, 1) {
  SC_SHARED(CryptShared, shared);
  verify_record(shared, args.record, associated_of_probe(args), share_of_probe(args));
  show(shared, args.left_behind);
}

// The raw key is the record's input, the wrapping key its key, the expanded key its output.
SC_KERNEL(probe_expand_key, ProbeArgs, kThreads, 1) {
  SC_SHARED(KeyShared, shared);
  expand_key(shared, args.record.key, args.status, args.record.input, args.record.nonce, args.record.output);
  show(shared, args.left_behind);
}
