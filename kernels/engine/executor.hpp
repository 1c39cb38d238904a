// Runs plans. Resumable and non-blocking: progress() does what can be done now and returns.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
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
  // Whether the operation's memory still has work to do for it, of which nobody will tell this thread.
  bool outstanding() const { return outstanding_.load(std::memory_order_relaxed); }
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
  Turn peek(Operation& op, const PlanSource& source, uint32_t s, uint32_t bytes, const uint8_t** slot);
  // The context of a step's next record to seal, and of a source's record.
  RecordContext sealing(Operation& op, uint32_t s, uint32_t bytes);
  RecordContext opening(Operation& op, const PlanSource& source, uint32_t chunk, uint32_t bytes);
  void seal(Operation& op, uint32_t s, Queue queue, const uint8_t* plain, uint32_t bytes);
  // The step's slots are being filled: hands them on, now or when `ticket` settles.
  void sent(Operation& op, uint32_t s, uint32_t bytes, Ticket ticket);
  // The source's slot is being read: gives it back, now or when it was. False when the record was refused.
  bool took(Operation& op, const PlanSource& source, uint32_t bytes, const Opened& opened, bool was_opened);
  Turn settle(Operation& op);
  Turn violated(uint32_t peer);
  void finish_chunk(Operation& op, uint32_t s);
  // Private room of one slot each, for CPU memory and for the other. kSource holds a REDUCE's next source, and is free
  // again when its result is sealed. kOutgoing is for the send queue, the others for the receive queue.
  enum Staging : unsigned { kSealed, kSource = kSealed, kPlain, kOutgoing };
  uint8_t* staging(Operation& op, Staging index);

  // What a memory that works later has not done yet, in the order it was given.
  struct Sending {
    Ticket ticket;
    const PlanStep* step;
  };
  struct Taking {
    Ticket ticket;
    uint32_t lane;
  };
  struct Verdict {
    Ticket ticket;
    uint32_t peer;
  };

  Transport& t_;
  Counters& counters_;
  std::vector<uint8_t*> slots_;
  std::deque<Sending> sending_;
  std::deque<Taking> taking_;
  std::deque<Verdict> verdicts_;
  bool handed_ = false;
  std::atomic<bool> outstanding_{false};
  Memory* memories_[2] = {nullptr, nullptr};
  Room staging_[2][3];
  uint32_t failed_peer_ = 0;
  bool lane_violated_ = false;
};

}  // namespace securecoll
