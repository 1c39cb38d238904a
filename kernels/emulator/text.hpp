// printf into a string, for the emulator's diagnoses.
#pragma once
#include <string>

namespace securecoll::emulator {

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace securecoll::emulator
