// The kernel set "vaes512" on emulated registers, for tests.
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx2,bmi2,aes,pclmul,vaes,vpclmulqdq,prfchw")
#include "avx512_emulation.hpp"
#include "host/gcm.hpp"
#include "host/vector512.hpp"

extern const securecoll::host::AeadKernels kEmulated512, kEmulated512Far;
const securecoll::host::AeadKernels kEmulated512 = {"emulated512",
                                                    securecoll::host::Suite::aes_256_gcm,
                                                    securecoll::host::expand_key,
                                                    securecoll::host::Gcm<securecoll::host::Vector512>::seal,
                                                    securecoll::host::Gcm<securecoll::host::Vector512>::open,
                                                    securecoll::host::Gcm<securecoll::host::Vector512>::seal_far,
                                                    securecoll::host::Gcm<securecoll::host::Vector512>::open_far};
const securecoll::host::AeadKernels kEmulated512Far = {"emulated512/far",
                                                       kEmulated512.suite,
                                                       kEmulated512.expand,
                                                       kEmulated512.seal_far,
                                                       kEmulated512.open_far,
                                                       nullptr,
                                                       nullptr};
