// Runs plans. Resumable and non-blocking: progress() does what can be done now and returns.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/lane.hpp"
#include "engine/memory.hpp"
#include "engine/operation.hpp"
#include "engine/stream.hpp"

namespace securecoll {

struct Counters {
  std::atomic<uint64_t> bytes_sealed{0}, bytes_opened{0}, records_sealed{0}, records_opened{0}, records_far{0},
      waiting_ns{0}, operations{0};
};

// Everything a plan's numbers refer to.
struct Transport {
  uint32_t rank = 0, size = 1, slot_bytes = 0;
  Memory* memory = nullptr;
  std::vector<std::unique_ptr<LaneWriter>> writers;  // by lane: to rank p; [size] to all
  std::vector<std::unique_ptr<LaneReader>> readers;  // by lane: from rank p; [size + p] from p's lane to all
  std::vector<Stream> link_tx, link_rx, sender;      // by rank
};

class Executor {
 public:
  Executor(Transport& transport, Counters& counters) : t_(transport), counters_(counters) {}

  enum class Progress : uint8_t { blocked, moved, finished, failed };

  // Prepares cursors for the first look at an operation.
  void begin(Operation& op);
  // On `failed`, failed_peer() is the writer of the record or lane that did not verify.
  Progress progress(Operation& op);
  uint32_t failed_peer() const { return failed_peer_; }
  bool lane_violated() const { return lane_violated_; }

  // The ranks that the operation waits for now.
  std::vector<uint32_t> awaited(Operation& op);

 private:
  enum class Turn : uint8_t { blocked, ran, failed };

  Turn run_chunk(Operation& op, uint32_t step);
  Turn run_reduce(Operation& op, uint32_t s, uint64_t offset, uint32_t bytes);
  bool ready(const Operation& op, uint32_t s) const;
  bool has_turn(const Operation& op, int32_t use, uint32_t s) const;
  void advance(Operation& op, int32_t use);
  // All of a step's lanes to write, with a free slot each, in slots_; or blocked.
  Turn acquire(Operation& op, uint32_t s);
  // The slot of a record source; or blocked.
  Turn peek(Operation& op, const PlanSource& source, uint32_t s, const uint8_t** slot);
  void seal(Operation& op, uint32_t s, const uint8_t* plain, uint32_t bytes);
  bool open(Operation& op, const PlanSource& source, uint32_t chunk, const uint8_t* sealed, uint32_t bytes,
            uint8_t* plain, const void* prefetch);
  Turn violated(uint32_t peer);
  void finish_chunk(Operation& op, uint32_t s);
  // Private room of one slot each. kSource holds a REDUCE's next source, and is free again when its result is sealed.
  enum Staging : unsigned { kSealed, kSource = kSealed, kPlain };
  uint8_t* staging(Staging index);

  Transport& t_;
  Counters& counters_;
  std::vector<uint8_t*> slots_;
  std::unique_ptr<uint8_t[]> staging_[2];
  uint32_t failed_peer_ = 0;
  bool lane_violated_ = false;
};

}  // namespace securecoll
