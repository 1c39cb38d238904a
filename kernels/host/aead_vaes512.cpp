// The kernel set "vaes512".
#if defined(__x86_64__)
// GCC's own header leaves "don't care" operands uninitialized (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi2,aes,pclmul,vaes,vpclmulqdq,prfchw")
#include "host/gcm.hpp"
#include "host/vector512.hpp"

namespace securecoll::host {

const AeadKernels kVaes512 = {"vaes512",
                              Suite::aes_256_gcm,
                              expand_key,
                              Gcm<Vector512>::seal,
                              Gcm<Vector512>::open,
                              Gcm<Vector512>::seal_far,
                              Gcm<Vector512>::open_far};

}  // namespace securecoll::host
#endif
