// Finds accesses to shared memory that nothing orders, whatever order the threads happened to run in, and reads of
// bytes that the block never wrote.
//
// Two accesses of one byte by different threads, one of them a write, are a race unless a block barrier lies between
// them, or a chain of __syncwarp() in which both lanes take part. Shuffles, ballots and matrix products exchange
// registers and order no memory, and neither does running in lockstep. Atomic operations are left out of the account.
//
// The method is that of FastTrack (Flanagan, Freund, PLDI 2009), cut to CUDA's shape: block barriers order all
// threads, so time is an epoch number, and clocks in an epoch exist only between the lanes of a warp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace securecoll::emulator {

class RaceChecker {
 public:
  static constexpr unsigned kSeveral = ~0u;

  struct Finding {
    enum class Kind : uint8_t { none, unwritten, write_after_write, read_after_write, write_after_read };
    Kind kind = Kind::none;
    size_t offset = 0;   // of the byte
    unsigned other = 0;  // the thread that came before, or kSeveral of several warps
  };

  // A new block of `threads` threads, whose shared memory has `bytes` bytes.
  void begin(unsigned threads, size_t bytes);
  void block_barrier();
  // All lanes in `mask` of the warp that starts with thread `first`. False: too many since the last block barrier.
  bool warp_barrier(unsigned first, uint32_t mask);
  Finding access(unsigned thread, size_t offset, size_t bytes, bool write);

 private:
  // When and by whom: epoch in the upper half; below it, for one thread, its tick and its number, or else one of the
  // two marks. Zero is before everything.
  using Stamp = uint64_t;
  static constexpr unsigned kThreadBits = 10;
  static constexpr unsigned kTickBits = 20;
  static constexpr uint32_t kLanesMark = 0x80000000u;  // several lanes of one warp: below it, the index of their Lanes
  static constexpr uint32_t kWarpsMark = 0xc0000000u;  // several warps

  struct Cell {
    Stamp write;
    Stamp read;
  };
  // Unordered reads by lanes of one warp.
  struct Lanes {
    unsigned warp;
    uint32_t mask;
    uint32_t tick[32];
  };
  struct Clock {
    uint32_t tick = 0;
    uint32_t known[32] = {};  // lane l's accesses before its tick known[l] are ordered before this thread
  };

  static uint32_t epoch_of(Stamp s) { return static_cast<uint32_t>(s >> 32); }
  static unsigned thread_of(Stamp s) { return static_cast<unsigned>(s) & ((1u << kThreadBits) - 1); }
  static uint32_t tick_of(Stamp s) { return static_cast<uint32_t>(s) >> kThreadBits & ((1u << kTickBits) - 1); }
  Stamp now(unsigned thread) const {
    return static_cast<uint64_t>(epoch_) << 32 | clocks_[thread].tick << kThreadBits | thread;
  }
  bool ordered(Stamp earlier, unsigned thread) const;
  bool lane_ordered(unsigned earlier, uint32_t tick, unsigned thread) const;
  bool reads_ordered(Stamp reads, unsigned thread, unsigned* culprit) const;
  Stamp joined(Stamp reads, Stamp mine, unsigned thread);

  std::vector<Cell> cells_;  // one for each byte
  std::vector<Clock> clocks_;
  std::vector<Lanes> lanes_;
  uint32_t epoch_ = 0;        // never starts again, so cells of earlier blocks need no clearing
  uint32_t first_epoch_ = 0;  // of this block
  bool ticked_ = false;
};

}  // namespace securecoll::emulator
