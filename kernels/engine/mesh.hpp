// What connects a rank with its peers: shared memory where a pair has it, a socket where it has not.
//
// Which of the two is agreed between the two ends of each pair and known in here only: whoever asks for a lane's end
// gets one. The lane to all is one lane to write whatever there is below.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/address.hpp"
#include "engine/arena.hpp"
#include "engine/descriptor.hpp"
#include "engine/lane.hpp"
#include "engine/link.hpp"
#include "engine/meeting.hpp"
#include "engine/segment.hpp"
#include "engine/wait.hpp"

namespace securecoll {

class Mesh {
 public:
  // What a rank announces, inside the authenticated handshake.
  static constexpr size_t kEndpointBytes = 16 + Segment::kEndpointBytes + kAddressesBytes;

  // `shape`: with the most that a slot may hold. `shared`: whether shared memory is used at all. `addresses`: where to
  // listen, none for shared memory alone. Throws EngineError: config.
  Mesh(uint32_t rank, SegmentShape shape, bool shared, const std::vector<Address>& addresses);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // In this order: what to announce; looks, before this rank confirms the handshake, which peers share memory with it;
  // once all have confirmed, settles which do, and takes over the roots "conn" of each pair, by peer; meets its
  // neighbours among the others. All further sockets are made when a lane's end first needs one.
  std::string endpoint() const;
  // `slot_bytes`: what a slot holds; the same on all ranks.
  void connect(const std::vector<std::string>& endpoints, uint32_t slot_bytes);
  // `hosts`: a number for each rank's host, by the ranks' own authenticated word; ranks of one may share memory, and
  // the lane to all reaches them alone.
  void agree(std::vector<Secret> conn_tx, std::vector<Secret> conn_rx, std::vector<uint32_t> hosts);
  // Whether all neighbours were met by `until` (ns, monotonic). Throws EngineError: handshake, when one cannot be.
  bool meet(int64_t until);
  bool has_met() const { return met_; }
  // Who was not, and why.
  std::string missing() const;
  // The ranks that have a socket from the start where they share no memory, in rank order: those beside a rank on a
  // ring of all, and above and below it in a binary tree. So news reaches everyone whichever of them is gone.
  static std::vector<uint32_t> neighbours(uint32_t rank, uint32_t size);
  // Connections to this rank so far that proved nothing, and what is to be said of the last.
  uint64_t strangers() const { return meeting_ ? meeting_->strangers() : strangers_; }
  const std::string& last_stranger() const { return meeting_ ? meeting_->last_stranger() : last_stranger_; }

  uint32_t rank() const { return rank_; }
  bool is_shared(uint32_t peer) const { return shared_[peer]; }
  // Why this rank has no shared memory with a peer, or with anyone; empty when it was not asked to.
  const std::string& why_not_shared(uint32_t peer) const { return why_not_[peer]; }
  // Removes the segment's name. Idempotent.
  void unlink() noexcept;
  uint64_t mapped_bytes() const { return segment_ ? segment_->mapped_bytes() : 0; }
  std::vector<Segment::Range> ranges() const;

  // Lane ends. `peer` != rank.
  std::unique_ptr<LaneWriter> writer_to(uint32_t peer);
  std::unique_ptr<LaneWriter> writer_to_all();
  std::unique_ptr<LaneWriter> control_to(uint32_t peer);
  std::unique_ptr<LaneReader> reader_from(uint32_t peer);
  std::unique_ptr<LaneReader> reader_from_all(uint32_t peer);
  std::unique_ptr<LaneReader> control_from(uint32_t peer);
  std::unique_ptr<LaneWriter> messages_to(uint32_t peer);
  std::unique_ptr<LaneReader> messages_from(uint32_t peer);
  std::unique_ptr<LaneWriter> bulk_to(uint32_t peer);
  std::unique_ptr<LaneReader> bulk_from(uint32_t peer);
  // Before the first record on messages_to or bulk_to; idempotent, any thread. Throws EngineError: config, when shared
  // memory is too small.
  void allocate_messages(uint32_t peer);
  void allocate_bulk(uint32_t peer);

  // Whether the peer's process is there, as far as this rank can tell: of one that it has no way to it knows nothing
  // before it tries.
  bool alive(uint32_t peer);
  // Whether its process is known to have ended: alive() is also false for a host that has been silent for long.
  bool ended(uint32_t peer) const;
  // Those with whom this rank shares memory or has a socket, in rank order.
  const std::vector<uint32_t>& reached() const { return reached_; }
  bool reaches(uint32_t peer) const { return shared_[peer] || (links_[peer].link && links_[peer].link->attached()); }
  // Makes a socket to a peer that shares no memory, if there is none.
  void want(uint32_t peer) {
    if (!shared_[peer]) links_[peer].link->want();
  }
  // Why there is no socket to a peer that one is wanted to; empty where there is, or where it is not known.
  std::string why_not_reached(uint32_t peer) const;
  // Meets nobody any more.
  void stop_meeting();

  // For sockets; nothing to do where there are none. Under the communicator's progress lock.
  bool has_sockets() const { return any_links_; }
  // Sends what was published, as far as sockets take it. Whether all of it went.
  bool flush();
  // Whether all that was published for a peer went.
  bool flushed(uint32_t peer) const { return shared_[peer] || !links_[peer].link->backlog(); }
  // Takes in what has arrived, and sends. Whether anything had arrived.
  bool pump();
  // Appends the peers for whom something published is still here.
  void laggards(std::vector<uint32_t>& ranks) const;
  // Before the end: what was sent is to arrive. At most until then (ns, monotonic).
  void leave(int64_t until);

  // What wakes a thread of this rank that sleeps.
  Alarm alarm() const;
  void wake() const { ring(alarm().bell); }

 private:
  struct Watched {
    std::unique_ptr<Link> link;
    uint32_t events = 0;  // that the kernel is asked to report
  };
  void attach(uint32_t peer, Descriptor socket);
  // Makes the sockets that lanes' ends wait for.
  void meet_wanted();
  LaneShape shape_of(LaneKind kind) const { return lane_shapes_[static_cast<size_t>(kind)]; }
  std::unique_ptr<LaneWriter> link_writer(LaneKind kind, uint32_t peer);
  std::unique_ptr<LaneReader> link_reader(LaneKind kind, uint32_t peer);
  void watch(Watched& w);
  std::string who(uint32_t peer) const;

  const uint32_t rank_;
  SegmentShape shape_;
  LaneShapes lane_shapes_{};
  std::unique_ptr<Segment> segment_;
  std::vector<uint32_t> hosts_;  // by rank
  std::vector<uint8_t> shared_;  // by rank
  std::vector<std::string> why_not_;
  std::vector<std::vector<Address>> listening_;  // by rank
  std::unique_ptr<Meeting> meeting_;
  uint64_t strangers_ = 0;
  std::string last_stranger_;
  bool met_ = false, any_links_ = false;
  int64_t next_meeting_ = 0;
  std::vector<Watched> links_;      // by rank
  std::vector<uint32_t> attached_;  // ranks
  std::vector<Link*> wanting_;      // and not attached
  std::vector<uint32_t> reached_;
  Descriptor epoll_;
  mutable Bell bell_{};  // where there is no segment
};

}  // namespace securecoll
