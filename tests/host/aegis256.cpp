// The kernels of the set "aegis-vaes256" under whole nonces.
#include <immintrin.h>

#include "host/aead_sets.hpp"

#pragma GCC target("avx2,bmi2,aes,vaes,prfchw")
#include "host/aegis_vector256.hpp"
#include "whole_nonces.hpp"

WHOLE_NONCES(aegis256, AegisVector256)
