#include "engine/random.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "engine/error.hpp"

namespace securecoll {

void fill_random(void* to, size_t bytes) {
  auto* p = static_cast<uint8_t*>(to);
  while (bytes) {
    const ssize_t n = getrandom(p, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw EngineError(ErrorKind::config, std::string("the kernel gave no random bytes: ") + std::strerror(errno));
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

}  // namespace securecoll
