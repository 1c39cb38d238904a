// CPU memory behind the engine's memory seam: AES-256-GCM and reductions of this directory.
#pragma once
#include "engine/memory.hpp"

namespace securecoll::host {

// The process's CPU memory, with the AEAD kernels that the CPU picks, or those named. Null when the name is unknown
// here. Never destroyed.
Memory* memory(const char* kernels = nullptr);

}  // namespace securecoll::host
