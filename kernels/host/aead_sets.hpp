// The sets of kernels that aead.cpp chooses from, and the check that each passes first.
#pragma once
#include "host/aead.hpp"

#define SC_INLINE inline __attribute__((always_inline))

namespace securecoll::host {

// Where kernels write text: through the caches; past them, at an address that whole vectors may be stored at; past
// them, at one that whole blocks may.
enum class Stores { near, far, far_blocks };

#if defined(__x86_64__)
extern const AeadKernels kVaes512;
extern const AeadKernels kVaes256;
extern const AeadKernels kAegisVaes512;
extern const AeadKernels kAegisVaes256;
extern const AeadKernels kAegisAesni;
#endif
extern const AeadKernels kLibcrypto;

// Throws std::runtime_error unless the set gives the known answers of its suite, opens them, and refuses altered ones.
void check_known_answers(const AeadKernels& set);

}  // namespace securecoll::host
