// Reductions by instruction set: one translation unit each, made from reduce_kernels.inl.
#pragma once
#include "host/reduce.hpp"

namespace securecoll::host {

namespace generic {
ReduceFn kernel(DType dtype, RedOp op);
}
#if defined(__x86_64__)
namespace avx2 {
ReduceFn kernel(DType dtype, RedOp op);
}
namespace avx512 {
ReduceFn kernel(DType dtype, RedOp op);
}
#endif

}  // namespace securecoll::host
