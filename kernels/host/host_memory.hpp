// CPU memory behind the engine's memory seam: AEADs and reductions of this directory.
#pragma once
#include "engine/memory.hpp"
#include "host/aead.hpp"

namespace securecoll::host {

// The process's CPU memory, with the AEAD kernels that the CPU picks for a suite, or those named. Null when it has
// none, or none of this name in this suite. Never destroyed.
Memory* memory(Suite suite, const char* kernels = nullptr);

}  // namespace securecoll::host
