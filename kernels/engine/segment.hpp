// One rank's shared memory, and its view of its peers'.
//
// Every rank owns one POSIX segment that it alone writes: its bell, the heads and slots of the lanes it writes, the
// tails of the lanes it reads. Peers map it read-only. Its whole size follows from (size, most slot bytes, depth) and
// is checked before a peer's segment is mapped. Most of that is never allocated: the words are, for all ranks; the
// lanes to a peer that is found in the same memory, before this rank confirms the handshake; and the lanes for
// messages between two ranks, before their first one. The owner holds a POSIX record lock on it: the kernel drops the
// lock when the process dies, a forked child does not inherit it, and it works across pid namespaces. So a look at the
// lock tells whether a peer lives, and whether a left-over segment may be removed.
//
// Whether two ranks share memory is not told by names: each looks for a random challenge in the segment that the other
// made, and writes into its own, for the other to see, which peers' challenges it found.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/lane.hpp"
#include "engine/wait.hpp"

namespace securecoll {

struct SegmentShape {
  uint32_t size;        // ranks
  uint32_t slot_bytes;  // payload of one slot, a multiple of 64
  uint32_t depth;       // slots of a data lane

  static constexpr uint64_t kControlDepth = 32;
  static constexpr uint64_t kControlStride = 192;  // 128-byte record, tag, rounded to cache lines
  static constexpr uint64_t kPage = 4096;

  uint64_t stride() const;  // bytes from slot to slot
  uint64_t words_bytes(uint64_t words) const { return (words * sizeof(Word) + kPage - 1) / kPage * kPage; }
  uint64_t greetings_at() const { return 2 * kPage; }  // after the header page and the bell's page
  uint64_t heads_at() const { return greetings_at() + words_bytes(size); }
  uint64_t heads() const { return 4 * uint64_t{size} + 1; }
  uint64_t tails_at() const { return heads_at() + words_bytes(heads()); }
  uint64_t tails() const { return 5 * uint64_t{size}; }
  uint64_t control_at() const { return tails_at() + words_bytes(tails()); }
  uint64_t control_lane_bytes() const { return kControlDepth * kControlStride; }
  uint64_t slots_at() const;
  uint64_t lane_bytes() const { return depth * stride(); }
  // From here on, allocated when needed: for each peer a lane for messages and one for bulk.
  uint64_t messages_at() const { return slots_at() + uint64_t{size} * lane_bytes(); }
  uint64_t bytes() const { return messages_at() + 2 * uint64_t{size} * lane_bytes(); }
  // What is allocated before the first message where `here` of the ranks share the memory: words, for each of the
  // others a lane and one for control, and the lane to all.
  uint64_t needed(uint32_t here) const {
    return control_at() + (uint64_t{here} - 1) * (control_lane_bytes() + lane_bytes()) + lane_bytes();
  }
};

class Segment {
 public:
  // What peers need to map it, as its owner announces it.
  static constexpr size_t kEndpointBytes = 80;
  static constexpr size_t kChallengeBytes = 16;

  // There is no shared memory here, or not for this user.
  class Unavailable : public std::runtime_error {
   public:
    using std::runtime_error::runtime_error;
  };

  // Creates and locks this rank's segment. Throws Unavailable, or EngineError: config, as allocate_lanes does.
  Segment(uint32_t rank, SegmentShape shape);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  void endpoint(uint8_t out[kEndpointBytes]) const;
  // Maps the segment that a peer announced, and says so in this rank's own. False with the reason when it cannot be
  // mapped here, or is not the one that the peer made. Throws EngineError: handshake, when no peer could have
  // announced this.
  bool map(uint32_t peer, const uint8_t endpoint[kEndpointBytes], std::string& why_not);
  // After the last one: settles the payload of a slot, at most that of the shape, and allocates the lanes to those
  // that were mapped. Throws EngineError: config, with path, needed and free bytes, when shared memory is too small.
  void allocate_lanes(uint32_t slot_bytes);
  // Once every rank has tried: whether both found each other's. Equal on both ends. Unmaps the segment of a peer that
  // is not met.
  bool meets(uint32_t peer);
  void unmap(uint32_t peer) noexcept { release(mappings_[peer]); }
  // Removes the name: everyone has mapped it. Idempotent.
  void unlink() noexcept;

  uint32_t rank() const { return rank_; }
  const SegmentShape& shape() const { return shape_; }
  Bell* bell() const;
  uint64_t mapped_bytes() const;

  // Lane ends. `peer` is one that is met, and the lane to all reaches those.
  std::unique_ptr<LaneWriter> writer_to(uint32_t peer) const;
  std::unique_ptr<LaneWriter> writer_to_all() const;
  std::unique_ptr<LaneWriter> control_to(uint32_t peer) const;
  std::unique_ptr<LaneReader> reader_from(uint32_t peer) const;
  std::unique_ptr<LaneReader> reader_from_all(uint32_t peer) const;
  std::unique_ptr<LaneReader> control_from(uint32_t peer) const;
  std::unique_ptr<LaneWriter> messages_to(uint32_t peer) const;
  std::unique_ptr<LaneReader> messages_from(uint32_t peer) const;
  std::unique_ptr<LaneWriter> bulk_to(uint32_t peer) const;
  std::unique_ptr<LaneReader> bulk_from(uint32_t peer) const;
  // Before the first record on messages_to or bulk_to. Idempotent. Throws EngineError: config, when shared memory is
  // too small.
  void allocate_messages(uint32_t peer) { allocate(2 * uint64_t{peer}); }
  void allocate_bulk(uint32_t peer) { allocate(2 * uint64_t{peer} + 1); }

  // The slots that are mapped and allocated up front, for a device that can reach host memory.
  struct Range {
    uint8_t* base;
    size_t bytes;
    bool writable;  // this rank's own
  };
  std::vector<Range> ranges() const;

  // Whether the peer's process still holds its segment.
  bool alive(uint32_t peer) const;

 private:
  struct Mapping {
    uint8_t* base = nullptr;
    int fd = -1;
    bool same_process = false;
  };
  const Word* word(uint32_t rank, uint64_t at, uint64_t index) const;
  // Maps all of a segment, and brings in its words.
  void* map_file(int fd, int protection) const;
  uint8_t* greeting(uint32_t from, uint32_t to) const;
  void release(Mapping& m) noexcept;
  // The same kind of lane as seen by its two ends: its head, tail and slots within the segments that hold them.
  std::unique_ptr<LaneWriter> writer(uint32_t peer, uint64_t head, uint64_t tail, uint64_t slots) const;
  std::unique_ptr<LaneReader> reader(uint32_t peer, uint64_t head, uint64_t tail, uint64_t slots) const;
  uint64_t message_slots(uint64_t lane) const { return shape_.messages_at() + lane * shape_.lane_bytes(); }
  std::vector<std::pair<uint64_t, uint64_t>> slots_of(uint32_t owner) const;
  uint32_t mapped() const;
  void allocate(uint64_t lane);
  [[noreturn]] void too_small(const std::string& path, uint64_t bytes, int failed) const;

  uint32_t rank_;
  SegmentShape shape_;
  const uint64_t file_bytes_;
  std::string name_;
  uint8_t challenge_[kChallengeBytes];
  bool linked_ = false;
  std::vector<Mapping> mappings_;  // by rank; this rank's own is writable
  std::mutex allocation_;
  std::vector<uint8_t> allocated_;  // by lane for messages
  std::atomic<uint64_t> allocated_bytes_{0};
};

}  // namespace securecoll
