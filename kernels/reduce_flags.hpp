// How a reduction's operands lie and what is done to them on the way, on host and device.
#pragma once

#if defined(__CUDACC_RTC__)
#include "cuda/fixed_width.cuh"  // NVRTC brings no standard headers
#else
#include <cstdint>
#endif

namespace securecoll {

enum ReduceFlags : uint32_t {
  kAIsAccumulator = 1,    // `a` holds accumulator elements, not dtype elements
  kOutIsAccumulator = 2,  // write accumulator elements: a partial result, neither rounded nor finished
  kScaleA = 4,            // PREMUL_SUM: multiply a by `factor` first (this rank's own, raw contribution)
  kScaleB = 8,            // the same for b
  kFinish = 16,           // AVG: divide the result by `world` (integers truncate toward zero)
};

}  // namespace securecoll
