// A link: one TCP socket between two ranks, which carries every lane between them, both ways.
//
// On the wire, frames of a 12-byte header, each at once checked against what its lane expects:
//
//   u8 kind | u8 lane | u16 zero | u32 number | u32 bytes
//
// A *record* frame is followed by `bytes` of one sealed record; `number` counts the lane's records. A *credit* frame
// has none; its `number` counts the records of the opposite lane that this end gave back. A *ping* says nothing, and
// is there to be acknowledged by the peer's host. The header is a routing
// hint, unauthenticated: it says in which of the lane's private slots a record belongs, and nothing is allocated or
// believed for it. A header that does not fit (an unknown lane, a number out of order, a record too short or long,
// more records than there are slots, credit for what was not sent) is a violation, and the last thing that is read of
// that socket.
//
// A writer may have as many records under way as its lane is deep: so whatever arrives has a slot waiting, no lane
// stands in the way of another, and the socket is always read to its end. Nothing in here blocks.
#pragma once
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/descriptor.hpp"
#include "engine/lane.hpp"

namespace securecoll {

// The lanes of a socket, by their number in a frame.
enum class LaneKind : uint8_t { data, all, control, messages, bulk };
inline constexpr size_t kLaneKinds = 5;

struct LaneShape {
  uint32_t bytes = 0;  // the longest record, tag included
  uint32_t depth = 0;  // slots
};
using LaneShapes = std::array<LaneShape, kLaneKinds>;

// A lane's slots in private memory, reserved when the lane is first used. The one that was given back last is taken
// next: it is still in the cache, and what is never needed is never touched.
class Slots {
 public:
  explicit Slots(LaneShape shape) : shape_(shape) {}
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  // There is one: no more than the lane's depth are out.
  uint8_t* take();
  void give_back(uint8_t* slot) { free_.push_back(slot); }
  const LaneShape& shape() const { return shape_; }

 private:
  LaneShape shape_;
  uint8_t* base_ = nullptr;
  std::vector<uint8_t*> free_;
};

class Link {
 public:
  // Without a socket for now: what is sent waits for one. `wanting`: where this link enters itself when a lane's end
  // first has something to send, or waits for something.
  Link(uint32_t peer, const LaneShapes& shapes, std::vector<Link*>& wanting)
      : peer_(peer), shapes_(shapes), wanting_(wanting) {}
  // `socket`: connected, proven to be the peer's, non-blocking.
  void attach(Descriptor socket);
  bool attached() const { return static_cast<bool>(socket_); }
  void want() {
    if (!wanted_) wanting_.push_back(this);
    wanted_ = true;
  }

  uint32_t peer() const { return peer_; }
  int socket() const { return socket_.get(); }

  // Sends what is queued, as far as the socket takes it. Whether nothing is left.
  bool flush();
  bool backlog() const { return !queue_.empty(); }
  // Takes in what has arrived. Whether anything had.
  bool receive();
  // Whether there is a point in asking: attached, and neither ended nor violated.
  bool readable() const { return attached() && !ended_ && !violated_; }
  // False once the peer's end is closed and all that came before was taken in, or the peer's host has been silent for
  // too long while it owed an answer.
  bool alive();
  // Whether the peer's end is closed.
  bool ended() const { return ended_; }
  bool violated() const { return violated_; }
  // Says that nothing more will be sent, and discards what comes. Whether the peer's host has all that was sent: only
  // then may the socket be closed, for closing it on unread data would take back what is still under way.
  bool leave();

  // For the lanes' ends. A record stays where it is until it was sent.
  void send(LaneKind lane, const uint8_t* record, uint32_t bytes);
  uint64_t sent(LaneKind lane) const { return out_[index(lane)].sent; }
  uint64_t returned(LaneKind lane) const { return out_[index(lane)].returned; }
  // How many records have come; the slot and length of one that is not given back.
  uint64_t received(LaneKind lane) const { return in_[index(lane)].received; }
  struct Received {
    uint8_t* slot = nullptr;
    uint32_t bytes = 0;
  };
  const Received& record(LaneKind lane, uint64_t position) const;
  // The oldest one.
  void give_back(LaneKind lane);

 private:
  static constexpr size_t kHeaderBytes = 12;
  static constexpr size_t kBufferBytes = 8192;
  enum class FrameKind : uint8_t { record = 1, credit = 2, ping = 3 };

  struct Outbound {
    uint64_t queued = 0, sent = 0, returned = 0;
  };
  struct Inbound {
    std::unique_ptr<Slots> slots;
    std::vector<Received> records;  // by number, modulo the depth
    uint64_t received = 0, released = 0, granted = 0;
  };
  struct Frame {
    uint8_t header[kHeaderBytes];
    const uint8_t* record;
    uint32_t bytes;
    bool is_record;
    uint8_t lane;
  };

  static size_t index(LaneKind lane) { return static_cast<size_t>(lane); }
  static Frame frame(FrameKind kind, size_t lane, uint64_t number, const uint8_t* record, uint32_t bytes);
  void queue_credit(bool anyway);
  void sent(size_t bytes);
  void parse();
  // Checks buffer_'s first header and makes ready for what follows it. False on a violation.
  bool begin_frame(const uint8_t header[kHeaderBytes]);

  const uint32_t peer_;
  Descriptor socket_;
  const LaneShapes shapes_;
  std::vector<Link*>& wanting_;
  std::array<Outbound, kLaneKinds> out_;
  std::array<Inbound, kLaneKinds> in_;

  std::deque<Frame> queue_;
  size_t queued_ = 0;     // bytes of records
  size_t head_sent_ = 0;  // bytes of the first frame that are on their way
  bool wanted_ = false;   // or attached
  bool deaf_ = false;     // the peer takes nothing any more
  bool ended_ = false, violated_ = false, shut_ = false;

  // Either a record is being received and the buffer is empty, or the buffer has less than a header.
  uint8_t* record_at_ = nullptr;
  uint32_t record_left_ = 0;
  size_t record_lane_ = 0;
  size_t filled_ = 0;
  std::unique_ptr<uint8_t[]> buffer_;
};

// A lane's end that writes, to one peer or to several: its slots are shared by all of them, and by a lane in shared
// memory when there is one, into which each record is copied once.
class LinkLaneWriter final : public LaneWriter {
 public:
  LinkLaneWriter(LaneKind lane, LaneShape shape, std::vector<Link*> links, std::unique_ptr<LaneWriter> local);
  uint8_t* acquire() override;
  void reserve(uint32_t bytes) override;
  void publish() override;
  bool violated() const override { return violated_; }
  void laggards(std::vector<uint32_t>& ranks) const override;

 private:
  struct Record {
    uint8_t* slot = nullptr;
    uint32_t bytes = 0;
    uint8_t* local = nullptr;
  };
  const LaneKind lane_;
  Slots slots_;
  std::vector<Link*> links_;
  std::unique_ptr<LaneWriter> local_;
  std::vector<Record> records_;
  Record next_;  // acquired, and not yet reserved
  uint64_t position_ = 0, published_ = 0, sent_ = 0, free_until_;
  bool violated_ = false;
};

class LinkLaneReader final : public LaneReader {
 public:
  LinkLaneReader(LaneKind lane, Link* link) : lane_(lane), link_(link) {}
  const uint8_t* peek(uint32_t bytes) override;
  void take() override { position_++; }
  void release() override { link_->give_back(lane_); }
  bool violated() const override { return violated_ || link_->violated(); }
  uint32_t writer() const override { return link_->peer(); }

 private:
  const LaneKind lane_;
  Link* link_;
  uint64_t position_ = 0;
  bool violated_ = false;  // this lane alone: peers that made different calls still have to tell each other
};

}  // namespace securecoll
