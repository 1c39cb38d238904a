// The kernel set "aegis-vaes512" on emulated registers, for tests, and its kernels under whole nonces.
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx2,bmi2,aes,vaes,vpclmulqdq,prfchw")
#include "avx512_emulation.hpp"
#include "host/aegis_vector512.hpp"
#include "whole_nonces.hpp"

using namespace securecoll::host;
using Emulated = Aegis<AegisVector512>;

extern const AeadKernels kAegisEmulated512, kAegisEmulated512Far;
const AeadKernels kAegisEmulated512 = {"aegis-emulated512", Suite::aegis_256x4, Emulated::expand,  Emulated::seal,
                                       Emulated::open,      Emulated::seal_far, Emulated::open_far};
const AeadKernels kAegisEmulated512Far = {"aegis-emulated512/far",
                                          Suite::aegis_256x4,
                                          Emulated::expand,
                                          Emulated::seal_far,
                                          Emulated::open_far,
                                          nullptr,
                                          nullptr};

WHOLE_NONCES(aegis512, AegisVector512)
