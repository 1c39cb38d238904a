// The kernel set "aegis-aesni".
#if defined(__x86_64__)
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx,aes")
#include "host/aegis.hpp"
#include "host/aegis_vector128.hpp"

namespace securecoll::host {

const AeadKernels kAegisAesni = {"aegis-aesni",
                                 Suite::aegis_256x4,
                                 Aegis<AegisVector128>::expand,
                                 Aegis<AegisVector128>::seal,
                                 Aegis<AegisVector128>::open,
                                 nullptr,
                                 nullptr};

}  // namespace securecoll::host
#endif
