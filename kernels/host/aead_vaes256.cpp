// The kernel set "vaes256".
#if defined(__x86_64__)
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx2,bmi2,aes,pclmul,vaes,vpclmulqdq,prfchw")
#include "host/gcm.hpp"
#include "host/vector256.hpp"

namespace securecoll::host {

const AeadKernels kVaes256 = {"vaes256",
                              Suite::aes_256_gcm,
                              expand_key,
                              Gcm<Vector256>::seal,
                              Gcm<Vector256>::open,
                              Gcm<Vector256>::seal_far,
                              Gcm<Vector256>::open_far};

}  // namespace securecoll::host
#endif
