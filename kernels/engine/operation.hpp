// One collective, send or receive in flight on one rank.
#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "engine/codes.hpp"
#include "engine/error.hpp"
#include "engine/memory.hpp"
#include "engine/plan.hpp"
#include "engine/table.h"

namespace securecoll {

// A list of segments seen as one run of bytes.
class Buffer {
 public:
  void assign(const sc_segment* segments, uint32_t count);
  uint64_t bytes() const { return bytes_; }
  // Where [offset, offset + length) lies, or null when it crosses segments.
  uint8_t* contiguous(uint64_t offset, uint64_t length) const;
  // Whether the byte at this address is one of them.
  bool holds(const void* at) const;
  // Between the run and contiguous memory.
  void gather(Memory& memory, Queue queue, uint64_t offset, uint64_t length, uint8_t* to) const;
  void scatter(Memory& memory, Queue queue, uint64_t offset, uint64_t length, const uint8_t* from) const;
  void zero(Memory& memory) const noexcept;
  // Appends the segments that [offset, offset + length) lies in.
  void segments(std::vector<sc_segment>& to, uint64_t offset, uint64_t length) const;

 private:
  template <class F>
  void each(uint64_t offset, uint64_t length, F f) const;
  size_t find(uint64_t offset) const;

  std::vector<sc_segment> segments_;
  std::vector<uint64_t> starts_;
  uint64_t bytes_ = 0;
};

// The plan of a call and what binds its records to it, cached by call.
struct Prepared {
  Plan plan;
  // By peer: the descriptor of what this rank seals for it, and of what it opens from it. Equal for all peers but in
  // pairwise collectives.
  std::vector<uint64_t> sealed_descriptor, opened_descriptor;
};

// A call as a human reads it, and as peers compare it.
struct Call {
  Collective collective = Collective::barrier;
  DType dtype = DType::none;
  RedOp redop = RedOp::none;
  uint32_t root = 0;  // of a send or a receive: the other rank, or kAnySource
  uint64_t count = 0;
  uint64_t tag = 0;  // of a send or a receive
  std::string text() const;
};

enum OperationState : uint32_t { kInFlight = 0, kDone = 1, kFailed = 2 };

class Communicator;

// Private room in a memory.
class Room {
 public:
  Room() = default;
  Room(Room&& o) noexcept { *this = std::move(o); }
  Room& operator=(Room&& o) noexcept {
    std::swap(memory_, o.memory_);
    std::swap(at_, o.at_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~Room() {
    if (at_) memory_->release(at_, bytes_);
  }
  // At least `bytes` in that memory. What was in it before is lost.
  uint8_t* in(Memory& memory, size_t bytes) {
    if (at_ && (memory_ != &memory || bytes_ < bytes)) {
      memory_->release(at_, bytes_);
      at_ = nullptr;
    }
    if (!at_) {
      at_ = memory.allocate(bytes);
      memory_ = &memory;
      bytes_ = bytes;
    }
    return at_;
  }

 private:
  Memory* memory_ = nullptr;
  uint8_t* at_ = nullptr;
  size_t bytes_ = 0;
};

struct StepCursor {
  uint32_t chunk = 0;   // next
  uint32_t source = 0;  // REDUCE: sources of this chunk already combined
  bool a_accumulated = false;
  const uint8_t* a = nullptr;
  Room scratch;  // REDUCE: for this step's partial chunk
};

struct LaneTurn {
  uint32_t wave = 0, index = 0, left = 0;  // index into LaneUse::steps; left: records of that step in this wave
  bool over = false;
};

inline constexpr uint32_t kAnySource = UINT32_MAX;

struct Operation {
  // Referenced by the caller's handle and by the communicator's queue.
  std::atomic<uint32_t> references{1};
  std::atomic<uint32_t> state{kInFlight};
  std::atomic<uint32_t> waiters{0};  // threads asleep on `state`
  Error error;                       // valid once state is kFailed

  std::shared_ptr<Communicator> owner;
  std::shared_ptr<const Prepared> prepared;
  Call call;
  std::vector<uint64_t> send_counts, recv_counts;
  uint64_t sequence = 0;
  uint32_t epoch = 0;
  double factor = 1;
  Memory* memory = nullptr;  // where the buffers live
  void* ready = nullptr;     // marks of that memory: what this comes after, and its own end
  void* end = nullptr;
  Buffer buffers[2];
  int64_t timeout = 0, deadline = 0;  // ns; the deadline monotonic
  sc_done done = nullptr;
  void* context = nullptr;

  // Execution.
  bool active = false;
  std::vector<StepCursor> cursors;
  std::vector<LaneTurn> turns;
  uint32_t unfinished = 0;  // steps
  // Everything was handed to a memory that works later, whose last ticket this is. A caller that orders its own work
  // behind `end` need not wait longer.
  std::atomic<uint32_t> handed{0};
  Ticket last = kNow;
  bool timed = false, far = false;  // see store_choice.hpp
  int64_t worked_ns = 0;

  // Of a call that was cut: how many pieces are not final, and the last one, which ends the call. A piece knows its
  // whole.
  std::atomic<uint32_t> pieces{0};
  Operation* last_piece = nullptr;
  Operation* whole = nullptr;

  // Of a send or a receive: who sent it, once that is known, and where it stands among the unfinished ones.
  uint32_t source = kAnySource;
  std::list<Operation*>::iterator entry;

  bool final() const { return state.load(std::memory_order_acquire) != kInFlight; }
};

}  // namespace securecoll
