// The shared object that kernels and emulator are part of.
#pragma once
#include <cstddef>
#include <cstdint>

namespace securecoll::emulator {

// Whether the memory belongs to its code, constants or static variables.
bool module_holds(uintptr_t at, size_t bytes);

}  // namespace securecoll::emulator
