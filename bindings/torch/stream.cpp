#include "stream.hpp"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>

namespace securecoll::binding {
namespace {

// Through c10's device-neutral face, so that this binding needs no CUDA to build. torch before 2.12 does not say there
// what the handle is, but its Python side does.
template <class Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    const pybind11::gil_scoped_acquire gil;
    const auto raw = pybind11::module_::import("torch._C").attr("_cuda_getCurrentRawStream")(stream.device_index());
    return reinterpret_cast<void*>(raw.template cast<uintptr_t>());
  }
}

}  // namespace

void* current_stream(c10::Device device) {
  return handle_of(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace securecoll::binding
