// Reductions with AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include "host/reduce_sets.hpp"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")
#define SC_REDUCE_F16C
#define SC_REDUCE_ISA avx512
#include "host/reduce_kernels.inl"
#endif
