// Monotonic time in nanoseconds.
#pragma once
#include <time.h>

#include <cstdint>

namespace securecoll {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

inline constexpr int64_t kMillisecond = 1'000'000;

}  // namespace securecoll
