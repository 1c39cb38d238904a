// Reductions on CPU memory.
//
// One function per (dtype, operation) does every form that a plan needs: dst = finish(a (+) b). 16- and 8-bit
// floats are widened to float32, combined there, and rounded once, to nearest even, when the result is stored in
// its own dtype. Results do not depend on the instruction set that computed them: every NaN that arithmetic or a
// conversion gives is one NaN, positive, quiet and without payload. Conversions are those of torch 2.13:
// float8_e4m3fn saturates, float8_e5m2 overflows to infinity, the fnuz formats to NaN. Integers wrap.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/codes.hpp"
#include "reduce_flags.hpp"

namespace securecoll::host {

struct ReduceArgs {
  void* dst;       // may be exactly a or b, where elements have the same size there; no other overlap
  const void* a;   // the contribution of the lower rank, or what was accumulated so far
  const void* b;   // may be null: then dst = finish(a), with conversion and scaling
  size_t count;    // elements
  double factor;   // PREMUL_SUM
  uint32_t world;  // AVG; at least 1
  uint32_t flags;
};

using ReduceFn = void (*)(const ReduceArgs&);

// Null where the operation makes no sense for the dtype (the table stands in docs/architecture.md).
// Sum, product: every dtype (bool: or, and). avg: all but bool. min, max: all but complex; NaN wins. band, bor,
// bxor: integers and bool. premul_sum: all but bool (integers: the product is computed in double, truncated toward
// zero and saturated; NaN is 0).
// bool results are always 0 or 1, whatever bytes came in.
ReduceFn reduce_kernel(DType dtype, RedOp op);

// Bytes of one accumulator element: 4 for 16- and 8-bit floats, else element_bytes.
size_t accumulator_bytes(DType dtype);

// The instruction set reductions run with: "avx512", "avx2" or "generic".
const char* reduce_isa();

// For tests: as reduce_kernel, for a named instruction set; null where unknown or not supported by this CPU.
ReduceFn reduce_kernel_for(const char* isa, DType dtype, RedOp op);

}  // namespace securecoll::host
