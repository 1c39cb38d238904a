// Reductions for any CPU.
#include "host/reduce_sets.hpp"

#define SC_REDUCE_ISA generic
#include "host/reduce_kernels.inl"
