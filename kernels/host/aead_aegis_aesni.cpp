// The kernel set "aegis-aesni".
#if defined(__x86_64__)
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("sse4.1,aes")
#include "host/aegis.hpp"
#include "host/aegis_vector128.hpp"

namespace securecoll::host {

const AeadKernels kAegisAesni = {"aegis-aesni",
                                 Suite::aegis_256x4,
                                 Aegis<AegisVector128>::expand,
                                 Aegis<AegisVector128>::seal,
                                 Aegis<AegisVector128>::open,
                                 Aegis<AegisVector128>::seal_far,
                                 Aegis<AegisVector128>::open_far};

}  // namespace securecoll::host
#endif
