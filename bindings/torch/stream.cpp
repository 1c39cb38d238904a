#include "stream.hpp"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace securecoll::binding {

// Through c10's device-neutral face, so that this binding needs no CUDA to build.
void* current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace securecoll::binding
