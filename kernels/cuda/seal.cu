// Sealing and verifying.
#include "gcm.cuh"

using namespace securecoll::cuda;

SC_KERNEL(sc_seal, CryptArgs, kRegisterThreads, 1) {
  SC_SHARED(CryptShared, shared);
  const Record& record = args.record[record_of_cta(args)];
  seal_record(shared, record, associated_of(record), share_of_cta(args));
}

SC_KERNEL(sc_verify, CryptArgs, kRegisterThreads, 1) {
  SC_SHARED(CryptShared, shared);
  const Record& record = args.record[record_of_cta(args)];
  verify_record(shared, record, associated_of(record), share_of_cta(args));
}

// On the user's stream, after all that wrote to the user's tensors: nothing behind it runs on what did not verify.
SC_KERNEL(sc_gate, GateArgs, 32, 1) {
  if (threadIdx.x == 0 && is_failed(args.status)) trap();
}
