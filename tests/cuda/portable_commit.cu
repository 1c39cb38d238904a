// As cuda/commit.cu, with the GHASH that needs no tensor cores.
#define SECURECOLL_PORTABLE_GHASH
#include "cuda/commit.cu"
