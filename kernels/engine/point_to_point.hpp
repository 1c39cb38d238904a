// Messages from one rank to another: send and receive, matched by source and tag.
//
// Each ordered pair has two lanes and two streams. On the first, for messages, every message begins with an envelope,
// a sealed record of fixed size: tag, bytes, dtype. A short message's payload follows at once and is held by the
// receiver until it is asked for, up to a bound that the sender keeps. A longer one, or one beyond the bound, is only
// announced: its payload comes on the lane for bulk, after the receiver cleared it. So a large message waits for its
// receiver only, never in the way of another one, and nothing is ever written but to where it was asked for.
//
// Envelopes are matched in the order they were sent, receives in the order they were posted. These lanes are no
// collective's, so the two cannot wait for each other; like the executor, progress() does what can be done now.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/executor.hpp"
#include "engine/lane.hpp"
#include "engine/memory.hpp"
#include "engine/mesh.hpp"
#include "engine/operation.hpp"
#include "engine/stream.hpp"

namespace securecoll {

// A stream whose records come one after another: both ends count what its key has sealed, and step to the next epoch
// before the same record.
class MeteredStream {
 public:
  MeteredStream() = default;
  MeteredStream(Stream stream, uint64_t budget_blocks) : stream_(std::move(stream)), budget_(budget_blocks) {}
  RecordContext next(Memory& memory, uint64_t sequence, uint32_t number, uint32_t length);
  void erase() noexcept { stream_.erase(); }

 private:
  Stream stream_;
  uint64_t budget_ = 0, used_ = 0;
};

class PointToPoint {
 public:
  static constexpr uint64_t kEagerBytes = 64 << 10;  // of payload that is not announced
  static constexpr uint64_t kHeldBytes = 16 << 20;   // held for one peer's messages that nobody asked for yet
  static constexpr size_t kEnvelopeBytes = 32;
  // Records that one message can have: a nonce has 24 bits for them.
  static constexpr uint64_t kRecords = uint64_t{1} << 24;

  struct Shape {
    uint32_t rank = 0, size = 1, slot_bytes = 0;
    uint64_t budget_blocks = 0;
  };
  PointToPoint(Shape shape, Memory* memory, Mesh* mesh, Counters& counters);

  // Before anything else, for every peer: takes over the roots of its two directions.
  void connect(uint32_t peer, Secret tx, Secret rx);

  // Makes room for messages to `peer`, and for long ones. Any thread. Throws EngineError: config.
  void prepare(uint32_t peer, bool bulk);

  // Takes a send or a receive (op.call) of op.buffers[0]. A failure shows in the next progress().
  void post(Operation* op);

  enum class Progress : uint8_t { blocked, moved, failed };
  // What became final is appended to `done`. `everyone`: also reads what peers sent that nobody asked for yet, so that
  // their lanes do not fill up.
  Progress progress(std::vector<Operation*>& done, bool everyone);

  // After `failed`.
  struct Failure {
    ErrorKind kind = ErrorKind::none;
    uint32_t peer = 0;
    std::string text;
    Call ours, theirs;  // of a mismatch
  };
  const Failure& failure() const { return failure_; }

  // The ranks that an operation waits for; all others for a receive from any.
  std::vector<uint32_t> awaited(const Operation& op) const;
  const std::list<Operation*>& unfinished() const { return unfinished_; }
  // Forgets them.
  std::list<Operation*> take_unfinished() { return std::move(unfinished_); }
  void erase() noexcept;

 private:
  enum class Kind : uint8_t {
    eager = 0,      // payload follows on this lane
    announced = 1,  // payload follows on the lane for bulk, once cleared
    clear = 2,      // `tag` is the number of the announced message that may come
    consumed = 3,   // `bytes` of this direction's eager messages, in all, were given to receives
  };
  struct Envelope {
    uint64_t tag = 0, bytes = 0;
    DType dtype = DType::none;
    Kind kind = Kind::eager;
    void encode(uint8_t out[kEnvelopeBytes]) const;
    bool decode(const uint8_t in[kEnvelopeBytes]);
  };
  // A message in the order of envelopes, until a receive has it.
  struct Incoming {
    Envelope envelope;
    uint64_t number = 0;   // on its stream
    uint64_t arrival = 0;  // among all peers' messages
    uint64_t opened = 0;   // payload bytes
    std::unique_ptr<uint8_t[]> held;
    Operation* to = nullptr;
    bool whole() const { return envelope.kind == Kind::eager && opened == envelope.bytes; }
  };
  struct Outgoing {
    Envelope envelope;
    Operation* op = nullptr;  // whose payload it is, or is about
    bool begun = false;       // its envelope is sealed
    uint64_t number = 0, sealed = 0;
  };
  struct Bulk {
    Operation* op;
    uint64_t number, moved;
  };
  struct Peer {
    std::unique_ptr<LaneWriter> writer, bulk_writer;
    std::unique_ptr<LaneReader> reader, bulk_reader;
    MeteredStream tx, rx, bulk_tx, bulk_rx;
    uint64_t sent = 0, received = 0;  // envelopes: the next one's number
    std::deque<Outgoing> outgoing;
    std::map<uint64_t, Operation*> announced;  // by number, until cleared
    std::deque<Bulk> bulk_out, bulk_in;        // in the order of clearances
    std::list<Incoming> incoming;
    bool opening = false;     // the last of `incoming` has payload to come on this lane
    uint64_t unconsumed = 0;  // bytes sent eagerly, in all
    uint64_t consumed_there = 0;
    uint64_t consumed_here = 0, consumed_told = 0;
    uint32_t expecting = 0;  // receives posted for this peer and not matched
    bool busy() const {
      return expecting || opening || !outgoing.empty() || !announced.empty() || !bulk_out.empty() || !bulk_in.empty();
    }
  };

  // Each: whether anything moved. On a failure failure_ says so.
  bool read_messages(uint32_t p);
  bool read_bulk(uint32_t p);
  bool write_messages(uint32_t p);
  bool write_bulk(uint32_t p);

  bool take_envelope(uint32_t p, const uint8_t* slot);
  bool take_payload(uint32_t p, const uint8_t* slot);
  // The next record, which has `bytes` of payload.
  const uint8_t* peek(uint32_t p, LaneReader& reader, uint32_t bytes);
  uint8_t* acquire(uint32_t p, LaneWriter& writer);
  void seal(MeteredStream& stream, LaneWriter& writer, uint8_t* slot, uint64_t number, uint32_t record,
            const uint8_t* plain, uint32_t bytes);
  // Into `op`'s buffer, or `held`. False when it did not verify.
  bool open(uint32_t p, MeteredStream& stream, LaneReader& reader, const uint8_t* slot, uint64_t number,
            uint32_t record, Operation* op, uint8_t* held, uint64_t offset, uint32_t bytes);
  const uint8_t* plain_of(Operation& op, uint64_t offset, uint32_t bytes);
  uint32_t chunk(uint64_t bytes, uint64_t offset) const;

  // The oldest posted receive that takes it.
  void match(uint32_t p, std::list<Incoming>::iterator message);
  void give(uint32_t p, std::list<Incoming>::iterator message, Operation* op);
  void deliver(uint32_t p, std::list<Incoming>::iterator message);
  void answer(uint32_t p, Envelope envelope);
  void finish(Operation* op);
  bool failed() const { return failure_.kind != ErrorKind::none; }
  void fail(ErrorKind kind, uint32_t peer, std::string text);

  const Shape shape_;
  Memory* const memory_;
  Mesh* const mesh_;
  Counters& counters_;
  std::vector<Peer> peers_;       // by rank
  std::list<Operation*> posted_;  // receives without a message, oldest first
  uint32_t any_ = 0;              // of them, from any source
  std::list<Operation*> unfinished_;
  std::vector<Operation*> done_;
  uint64_t arrivals_ = 0;
  Room staging_;
  Failure failure_;
};

}  // namespace securecoll
