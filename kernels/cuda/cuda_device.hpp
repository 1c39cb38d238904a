// A CUDA device through the driver's own library, opened at run time: the package needs no CUDA to build or to load.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cuda/device.hpp"

namespace securecoll::cuda {

// `functions`: the kernels' CUfunction handles, by name, loaded in the device's primary context by whoever holds the
// modules, which must outlive the device. Throws EngineError: config, when there is no driver or no such device.
std::shared_ptr<Device> cuda_device(uint32_t ordinal, std::map<std::string, uint64_t> functions);

}  // namespace securecoll::cuda
