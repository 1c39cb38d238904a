// The kernels of the set "aegis-aesni" under whole nonces.
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx,aes")
#include "host/aegis_vector128.hpp"
#include "whole_nonces.hpp"

WHOLE_NONCES(aegis128, AegisVector128)
