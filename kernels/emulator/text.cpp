#include "emulator/text.hpp"

#include <cstdarg>
#include <cstdio>

namespace securecoll::emulator {

std::string text(const char* format, ...) {
  char line[1024];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  return line;
}

}  // namespace securecoll::emulator
