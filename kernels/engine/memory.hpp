// The memory seam: how the engine touches payload bytes, wherever they live.
//
// The executor moves chunks between buffers and lanes and knows neither a cipher nor a device. A memory may do a piece
// of work at once, as CPU memory does, or accept it and do it later, in order. What the executor must know about later
// is when a slot may be handed on and whether a record verified; it gets a ticket for each and looks at it again.
//
// Work on one queue happens in the order it was given. Between the two queues there is no order but what follow()
// makes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/codes.hpp"

namespace securecoll {

inline constexpr size_t kTagBytes = 16;
inline constexpr size_t kNonceBytes = 12;
inline constexpr size_t kAssociatedBytes = 32;

// What one record is sealed or opened under.
struct RecordContext {
  const void* key;  // from Memory::expand
  uint8_t nonce[kNonceBytes];
  uint8_t associated[kAssociatedBytes];
  bool far = false;  // what is written, the record or the plaintext, is stored past the caches; see store_choice.hpp
};

struct ReduceTask {
  void* out;
  const void* a;
  const void* b;  // null: out = finish(a)
  uint64_t count;
  DType dtype;
  RedOp op;
  double factor;
  uint32_t world;
  bool a_is_accumulator, out_is_accumulator, scale_a, scale_b, finish;
};

// Sealing own memory waits for nothing that comes in, so it has a queue of its own.
enum class Queue : uint8_t { send, receive };

using Ticket = uint64_t;
inline constexpr Ticket kNow = 0;  // done already

enum class Settled : uint8_t { pending, good, refused };

struct Opened {
  bool refused = false;   // known at once
  Ticket taken = kNow;    // the slot was read
  Ticket verdict = kNow;  // it verified, or not
};

struct Forwarding {
  const uint8_t* from;  // a lane's slot, untrusted, read once
  uint8_t* const* to;   // `lanes` slots
  size_t lanes;
  size_t bytes;                 // of plaintext
  const RecordContext* record;  // null: not opened here
  uint8_t* plain;
  uint8_t* room;  // private, for the sealed record
};

struct Forwarded {
  Opened opened;
  Ticket sent = kNow;
};

class Memory {
 public:
  virtual ~Memory() = default;

  // Expands a raw key into the arena; discard() wipes it.
  virtual void* expand(const uint8_t key[32]) = 0;
  virtual void discard(void* key) noexcept = 0;

  // Private room for intermediate results, 64-byte aligned. It may be given back while work on it is still to be done.
  virtual uint8_t* allocate(size_t bytes) = 0;
  virtual void release(uint8_t* at, size_t bytes) noexcept = 0;

  // `sealed` are lanes' slots, untrusted: ciphertext, then the tag. Each is written once and never read; a record for
  // several is sealed once, into private `room`. The ticket settles when the slots were written.
  virtual Ticket seal(Queue queue, const RecordContext& record, const uint8_t* plain, size_t bytes,
                      uint8_t* const* sealed, size_t lanes, uint8_t* room) = 0;
  // Reads each byte of the slot once. `plain` is private memory, and garbage when the record is refused. `prefetch`,
  // when not null, is where `bytes` bytes will be written next.
  virtual Opened open(const RecordContext& record, const uint8_t* sealed, size_t bytes, uint8_t* plain,
                      const void* prefetch) = 0;
  // Opens a record and reduces it in: whichever of task.a and task.b is `room` is what was opened. Nothing that did
  // not verify enters a result that can be sealed.
  virtual Opened open_reduce(const RecordContext& record, const uint8_t* sealed, size_t bytes, uint8_t* room,
                             const void* prefetch, const ReduceTask& task) = 0;
  virtual Forwarded forward(const Forwarding& forwarding) = 0;
  virtual void reduce(Queue queue, const ReduceTask& task) = 0;
  // `far`: stored past the caches.
  virtual void copy(Queue queue, void* to, const void* from, size_t bytes, bool far = false) = 0;
  // At once, whatever is still to be done.
  virtual void zero(void* at, size_t bytes) noexcept = 0;

  virtual bool reducible(DType dtype, RedOp op) const = 0;

  // For memory that does its work later; CPU memory needs none of it.

  // A point in the caller's own work, from its stream, that an operation must come after. Throws EngineError: config
  // when that work is only being recorded for replay.
  virtual void* mark(void* /*stream*/) { return nullptr; }
  virtual void begin(void* /*mark*/) {}
  // Whether there is room for one more record on its way.
  virtual bool accepts(Queue) { return true; }
  // What is given to `queue` from now on comes after all that was given to the other.
  virtual void follow(Queue) {}
  // Whatever was held back to go with more of its kind starts now.
  virtual void flush() {}
  virtual Settled settled(Ticket) { return Settled::good; }
  // Everything given so far, on both queues. `end`, when not null, becomes a mark of that point, for release_mark.
  virtual Ticket finish(void** /*end*/) { return kNow; }
  // Whether all of it was really handed over, and `end` holds.
  virtual bool given(Ticket) { return true; }
  // The caller's stream goes on only after `end`, and only if everything verified.
  virtual void resume(void* /*end*/, void* /*stream*/) {}
  virtual void release_mark(void*) noexcept {}
  // Nothing is sealed or released from now on, and nothing is under way when it returns: keys can be wiped.
  virtual void stop() noexcept {}
};

}  // namespace securecoll
