// A lane: transport only. A one-way ring of fixed slots from one rank to one peer, or to all peers on the host.
//
// It holds no key and decides no length: which record comes next, and how long it is, both ends know from the plan. In
// shared memory a slot is write-only for the sender and read-once for the receiver, and the head and tail words only
// say "look again": each is loaded once, and a word that goes back, or further than the ring is deep, is a violation.
// Between hosts slots are private memory, filled and drained by a socket: see link.hpp.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace securecoll {

// A word in shared memory, alone on its cache line.
struct alignas(64) Word {
  std::atomic<uint64_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Wakes the threads of another process that sleep on its bell; see wait.hpp.
struct Bell;
void ring(const Bell* bell) noexcept;

class LaneWriter {
 public:
  virtual ~LaneWriter() = default;
  // The next slot, or null when no slot is free or the lane was violated.
  virtual uint8_t* acquire() = 0;
  // The next slot is in use: it will be filled with a record of `bytes`, and acquire() goes on to the one after it.
  virtual void reserve(uint32_t bytes) = 0;
  // Hands the oldest reserved slot to the readers.
  virtual void publish() = 0;
  virtual bool violated() const = 0;
  // Appends the readers that keep the next slot from being free.
  virtual void laggards(std::vector<uint32_t>& ranks) const = 0;
};

class LaneReader {
 public:
  virtual ~LaneReader() = default;
  // The next record's slot, or null when there is none yet or the lane was violated. `bytes` is how long the record
  // is; where the transport says otherwise, that is a violation.
  virtual const uint8_t* peek(uint32_t bytes) = 0;
  // The record is being read, and peek() goes on to the one after it.
  virtual void take() = 0;
  // Gives the oldest taken slot back to the writer.
  virtual void release() = 0;
  virtual bool violated() const = 0;
  virtual uint32_t writer() const = 0;
};

// The two ends in shared memory. `head` is written by the writer's process only, each `tail` by its reader's only.
class ShmLaneWriter final : public LaneWriter {
 public:
  struct Reader {
    uint32_t rank;
    const Word* tail;
    const Bell* bell;
  };
  ShmLaneWriter(Word* head, uint8_t* slots, uint64_t stride, uint64_t depth, std::vector<Reader> readers);
  uint8_t* acquire() override;
  void reserve(uint32_t) override { position_++; }
  void publish() override;
  bool violated() const override { return violated_; }
  void laggards(std::vector<uint32_t>& ranks) const override;

 private:
  Word* head_;
  uint8_t* slots_;
  uint64_t stride_, depth_, position_ = 0, published_ = 0, free_until_;
  std::vector<Reader> readers_;
  std::vector<uint64_t> seen_;
  bool violated_ = false;
};

class ShmLaneReader final : public LaneReader {
 public:
  ShmLaneReader(uint32_t writer, const Word* head, const uint8_t* slots, uint64_t stride, uint64_t depth, Word* tail,
                const Bell* bell);
  const uint8_t* peek(uint32_t bytes) override;
  void take() override { position_++; }
  void release() override;
  bool violated() const override { return violated_; }
  uint32_t writer() const override { return writer_; }

 private:
  uint32_t writer_;
  const Word* head_;
  const uint8_t* slots_;
  uint64_t stride_, depth_, position_ = 0, released_ = 0, seen_ = 0;
  Word* tail_;
  const Bell* bell_;
  bool violated_ = false;
};

}  // namespace securecoll
