// Devices as Python objects, for the communicator's binding.
#pragma once
#include <memory>

#include "cuda/device.hpp"

struct PyDevice {
  std::shared_ptr<securecoll::cuda::Device> device;
};
