// The kernel set "aegis-vaes256".
#if defined(__x86_64__)
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx2,bmi2,aes,vaes,prfchw")
#include "host/aegis.hpp"
#include "host/aegis_vector256.hpp"

namespace securecoll::host {

const AeadKernels kAegisVaes256 = {"aegis-vaes256",
                                   Suite::aegis_256x4,
                                   Aegis<AegisVector256>::expand,
                                   Aegis<AegisVector256>::seal,
                                   Aegis<AegisVector256>::open,
                                   Aegis<AegisVector256>::seal_far,
                                   Aegis<AegisVector256>::open_far};

}  // namespace securecoll::host
#endif
