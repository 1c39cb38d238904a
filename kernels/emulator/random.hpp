// Seeded choices: the same seed makes the same ones.
#pragma once
#include <cstddef>
#include <cstdint>

namespace securecoll::emulator {

// xorshift64*, seeded through a step of splitmix64, so that neighbouring seeds have nothing in common.
class Random {
 public:
  explicit Random(uint64_t seed) {
    seed += 0x9e3779b97f4a7c15u;
    seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ seed >> 27) * 0x94d049bb133111ebu;
    state_ = (seed ^ seed >> 31) | 1;
  }
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  // Uniform enough for scheduling, in [0, bound).
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((next() >> 32) * bound >> 32); }
  bool one_in(uint32_t n) { return below(n) == 0; }
  // Fills memory with bytes that no program expects.
  void fill(void* at, size_t bytes);

 private:
  uint64_t state_;
};

inline void Random::fill(void* at, size_t bytes) {
  auto* const to = static_cast<uint8_t*>(at);
  size_t done = 0;
  for (; done + 8 <= bytes; done += 8) {
    const uint64_t word = next();
    __builtin_memcpy(to + done, &word, 8);
  }
  const uint64_t word = next();
  __builtin_memcpy(to + done, &word, bytes - done);
}

}  // namespace securecoll::emulator
