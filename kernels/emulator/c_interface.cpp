// The emulator for tests, through ctypes. The engine does not come this way: it calls sc_emulated_device.
#include <cstdio>
#include <cstring>
#include <string>

#include "emulator/launch.hpp"

using securecoll::emulator::DeviceMemory;

extern "C" {

struct ScEmulatorLaunch {
  const char* kernel;
  const void* args;
  size_t args_bytes;
  uint32_t blocks, threads;
  size_t shared_bytes;
  uint32_t order;
  uint32_t resident;
  uint64_t seed;
  double patience;
};

__attribute__((visibility("default"))) DeviceMemory* sc_emulator_memory(size_t bytes, uint64_t seed) {
  return new DeviceMemory(bytes, seed);
}

__attribute__((visibility("default"))) void sc_emulator_memory_free(DeviceMemory* memory) { delete memory; }

__attribute__((visibility("default"))) uint64_t sc_emulator_allocate(DeviceMemory* memory, size_t bytes) {
  return memory->allocate(bytes);
}

__attribute__((visibility("default"))) int sc_emulator_release(DeviceMemory* memory, uint64_t at) {
  return memory->release(at);
}

__attribute__((visibility("default"))) void sc_emulator_map(DeviceMemory* memory, const void* host, size_t bytes,
                                                            int writable) {
  memory->map(host, bytes, writable != 0);
}

// Both return 0, and copy nothing, unless all of the device memory is allocated.
__attribute__((visibility("default"))) int sc_emulator_write(DeviceMemory* memory, uint64_t to, const void* from,
                                                             size_t bytes) {
  if (!memory->holds(to, bytes, true)) return 0;
  DeviceMemory::Access access;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 1;
}

__attribute__((visibility("default"))) int sc_emulator_read(DeviceMemory* memory, void* to, uint64_t from,
                                                            size_t bytes) {
  if (!memory->holds(from, bytes, false)) return 0;
  DeviceMemory::Access access;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 1;
}

// Writes what went wrong into `why`, empty if nothing did.
__attribute__((visibility("default"))) void sc_emulator_launch(DeviceMemory* memory, const ScEmulatorLaunch* launch,
                                                               char* why, size_t why_bytes) {
  using namespace securecoll::emulator;
  std::string error;
  const Kernel* const kernel = find_kernel(launch->kernel);
  if (kernel == nullptr) {
    error = std::string("no kernel \"") + launch->kernel + "\"";
  } else if (kernel->args_bytes != launch->args_bytes) {
    error = std::string(kernel->name) + " takes " + std::to_string(kernel->args_bytes) + " bytes of arguments, not " +
            std::to_string(launch->args_bytes);
  } else {
    LaunchRequest request{kernel, launch->args, launch->blocks, launch->threads, launch->shared_bytes};
    request.order = static_cast<Order>(launch->order);
    request.seed = launch->seed;
    request.resident = launch->resident;
    request.patience = launch->patience;
    error = run(request, *memory);
  }
  std::snprintf(why, why_bytes, "%s", error.c_str());
}

}  // extern "C"
