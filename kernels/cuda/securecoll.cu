// All kernels, for one module. The engine launches them by name.
#include "commit.cu"
#include "key.cu"
#include "reduce.cu"
#include "seal.cu"
