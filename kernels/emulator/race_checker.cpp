#include "emulator/race_checker.hpp"

namespace securecoll::emulator {

void RaceChecker::begin(unsigned threads, size_t bytes) {
  if (cells_.size() < bytes) cells_.resize(bytes);
  if (clocks_.size() < threads) clocks_.resize(threads);
  block_barrier();
  first_epoch_ = epoch_;
}

void RaceChecker::block_barrier() {
  epoch_++;
  lanes_.clear();
  if (!ticked_) return;
  for (Clock& clock : clocks_) clock = Clock{};
  ticked_ = false;
}

bool RaceChecker::warp_barrier(unsigned first, uint32_t mask) {
  ticked_ = true;
  uint32_t known[32] = {};
  for (unsigned lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    Clock& clock = clocks_[first + lane];
    clock.tick++;
    if (clock.tick >> kTickBits) return false;
    clock.known[lane] = clock.tick;
    for (unsigned other = 0; other < 32; other++) {
      if (clock.known[other] > known[other]) known[other] = clock.known[other];
    }
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    for (unsigned other = 0; other < 32; other++) clocks_[first + lane].known[other] = known[other];
  }
  return true;
}

bool RaceChecker::lane_ordered(unsigned earlier, uint32_t tick, unsigned thread) const {
  if (earlier == thread) return true;
  return earlier / 32 == thread / 32 && tick < clocks_[thread].known[earlier % 32];
}

// For a stamp of one thread.
bool RaceChecker::ordered(Stamp earlier, unsigned thread) const {
  return epoch_of(earlier) != epoch_ || lane_ordered(thread_of(earlier), tick_of(earlier), thread);
}

bool RaceChecker::reads_ordered(Stamp reads, unsigned thread, unsigned* culprit) const {
  if (epoch_of(reads) != epoch_) return true;
  const auto low = static_cast<uint32_t>(reads);
  if (low < kLanesMark) {
    *culprit = thread_of(reads);
    return ordered(reads, thread);
  }
  if (low >= kWarpsMark) {
    *culprit = kSeveral;
    return false;  // at least one of them is in another warp
  }
  const Lanes& lanes = lanes_[low & ~kLanesMark];
  for (unsigned lane = 0; lane < 32; lane++) {
    *culprit = lanes.warp * 32 + lane;
    if ((lanes.mask >> lane & 1) && !lane_ordered(*culprit, lanes.tick[lane], thread)) return false;
  }
  return true;
}

// What `reads` becomes when `mine` joins them.
RaceChecker::Stamp RaceChecker::joined(Stamp reads, Stamp mine, unsigned thread) {
  if (epoch_of(reads) != epoch_) return mine;
  const auto low = static_cast<uint32_t>(reads);
  const auto epoch = static_cast<uint64_t>(epoch_) << 32;
  if (low >= kWarpsMark) return reads;
  if (low >= kLanesMark) {
    Lanes& lanes = lanes_[low & ~kLanesMark];
    if (lanes.warp != thread / 32) return epoch | kWarpsMark;
    lanes.mask |= 1u << thread % 32;
    lanes.tick[thread % 32] = clocks_[thread].tick;
    return reads;
  }
  const unsigned other = thread_of(reads);
  if (ordered(reads, thread)) return mine;
  if (other / 32 != thread / 32) return epoch | kWarpsMark;
  Lanes lanes{thread / 32, 1u << other % 32 | 1u << thread % 32, {}};
  lanes.tick[other % 32] = tick_of(reads);
  lanes.tick[thread % 32] = clocks_[thread].tick;
  lanes_.push_back(lanes);
  return epoch | kLanesMark | static_cast<uint32_t>(lanes_.size() - 1);
}

RaceChecker::Finding RaceChecker::access(unsigned thread, size_t offset, size_t bytes, bool write) {
  using Kind = Finding::Kind;
  const Stamp mine = now(thread);
  const Stamp several = static_cast<uint64_t>(epoch_) << 32 | kWarpsMark;
  for (size_t at = offset; at < offset + bytes; at++) {
    Cell& cell = cells_[at];
    if (!write) {
      // Nothing was written since, and what was written before is ordered: for this thread, or, as no warp barrier
      // reaches several warps, by a block barrier for all.
      if (cell.read == mine || cell.read == several) continue;
      if (epoch_of(cell.write) < first_epoch_) return {Kind::unwritten, at, 0};
      if (!ordered(cell.write, thread)) return {Kind::read_after_write, at, thread_of(cell.write)};
      cell.read = joined(cell.read, mine, thread);
      continue;
    }
    unsigned culprit = 0;
    if (!ordered(cell.write, thread)) return {Kind::write_after_write, at, thread_of(cell.write)};
    if (!reads_ordered(cell.read, thread, &culprit)) return {Kind::write_after_read, at, culprit};
    cell.write = mine;
    cell.read = 0;
  }
  return {};
}

}  // namespace securecoll::emulator
