// Reductions with AVX2 and F16C. FMA stays out: a*b+c must round twice, as everywhere.
#if defined(__x86_64__)
#include <immintrin.h>

#include "host/reduce_sets.hpp"

#pragma GCC target("avx2,f16c")
#define SC_REDUCE_F16C
#define SC_REDUCE_ISA avx2
#include "host/reduce_kernels.inl"
#endif
