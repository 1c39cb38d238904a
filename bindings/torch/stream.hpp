// The caller's stream on a device.
#pragma once
#include <c10/core/Device.h>

namespace securecoll::binding {

// The handle (a CUstream; null is the default stream) of the stream that is current in the calling thread.
void* current_stream(c10::Device device);

}  // namespace securecoll::binding
