// Which of two ways of storing records into slots suits this machine.
//
// Stores through the caches are best when the reader's core shares one with this core: the reader finds the record
// there. Where it shares none, the writer first has to fetch every line back from the core that read it last, and the
// reader has to fetch it from the writer's; records stored past the caches then cost both of them less. Which machine
// this is nothing says inside a VM. So operations are timed (their work, not their waits), by size: two of each way at
// first, then one in thirty-two goes the other way. Ranks count the same operations, so all try the same way in the
// same one, and each sees what it costs as a writer and as a reader, without a message.
//
// What an operation writes for its caller goes past the caches when it is so much that no cache would still hold it by
// the time it is read, and when it takes the place of nothing that the operation reads.
#pragma once
#include <cstdint>

namespace securecoll {

inline constexpr uint64_t kFarOutput = 8 << 20;  // bytes

class StoreChoice {
 public:
  // Below, a record is too short for the way to matter, and an operation too short to be timed.
  static constexpr uint32_t kLeastChunk = 16 << 10;
  static constexpr uint64_t kLeastBlocks = kLeastChunk / 16;

  // Whether the next operation of this size (cipher blocks) should store past the caches.
  bool far(uint64_t blocks) {
    Size& s = sizes_[size_of(blocks)];
    const uint64_t n = s.operations++;
    if (n < 2 * kFirst) return n % 2 != 0;
    return (n % kPeriod == kPeriod - 1) != s.prefer_far();
  }

  void took(uint64_t blocks, bool far, int64_t ns) {
    Size& s = sizes_[size_of(blocks)];
    int64_t& mean = s.mean[far];
    // The first operations also pay for pages that were never touched: the least of them counts. Later, one that lost
    // its core in between says little.
    if (s.samples[far] < kFirst) {
      s.samples[far]++;
      mean = mean == 0 || ns < mean ? ns : mean;
    } else {
      mean += ((ns > 2 * mean ? 2 * mean : ns) - mean) / 4;
    }
  }

 private:
  static constexpr uint32_t kFirst = 2, kPeriod = 32;

  struct Size {
    int64_t mean[2] = {0, 0};  // ns, through and past the caches
    uint32_t samples[2] = {0, 0};
    uint64_t operations = 0;
    bool prefer_far() const { return mean[1] * 33 < mean[0] * 32; }
  };
  static unsigned size_of(uint64_t blocks) { return 63u - static_cast<unsigned>(__builtin_clzll(blocks | 1)); }

  Size sizes_[64];
};

}  // namespace securecoll
