// The kernel set "aegis-vaes512".
#if defined(__x86_64__)
// GCC's own header leaves "don't care" operands uninitialized (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi2,aes,vaes,prfchw")
#include "host/aegis.hpp"
#include "host/aegis_vector512.hpp"

namespace securecoll::host {

const AeadKernels kAegisVaes512 = {"aegis-vaes512",
                                   Suite::aegis_256x4,
                                   Aegis<AegisVector512>::expand,
                                   Aegis<AegisVector512>::seal,
                                   Aegis<AegisVector512>::open,
                                   Aegis<AegisVector512>::seal_far,
                                   Aegis<AegisVector512>::open_far};

}  // namespace securecoll::host
#endif
