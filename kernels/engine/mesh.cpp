#include "engine/mesh.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/clock.hpp"
#include "engine/control.hpp"
#include "engine/error.hpp"
#include "engine/wire.hpp"

namespace securecoll {
namespace {

// A socket's lanes are deeper than those in shared memory, and than plans ask for: the way is longer, a rank that is
// held up holds others up less, and slots that are not needed are not touched.
constexpr uint64_t kDeeper = 4;

// With so few links each is asked for news; with more, the kernel is asked which have any.
constexpr size_t kFewLinks = 2;

// How long the lower of two ranks that both want a socket waits for the higher one to connect. At the start, always:
// then all come.
constexpr int64_t kAfterYou = 20 * kMillisecond;
constexpr int64_t kForever = int64_t{1} << 60;

// How often there is a look at the door: while somebody is coming, and while nobody is known to.
constexpr int64_t kMeetSoon = kMillisecond / 5;
constexpr int64_t kMeetOften = kMillisecond;

LaneShapes lane_shapes(const SegmentShape& shape) {
  LaneShapes shapes;
  const auto set = [&](LaneKind kind, uint64_t payload, uint64_t depth) {
    shapes[static_cast<size_t>(kind)] = {static_cast<uint32_t>(payload + kTagBytes), static_cast<uint32_t>(depth)};
  };
  set(LaneKind::data, shape.slot_bytes, kDeeper * shape.depth);
  set(LaneKind::all, shape.slot_bytes, kDeeper * shape.depth);
  set(LaneKind::control, kControlBytes, SegmentShape::kControlDepth);
  set(LaneKind::messages, shape.slot_bytes, kDeeper * shape.depth);
  set(LaneKind::bulk, shape.slot_bytes, kDeeper * shape.depth);
  return shapes;
}

}  // namespace

Mesh::Mesh(uint32_t rank, SegmentShape shape, bool shared, const std::vector<Address>& addresses)
    : rank_(rank),
      shape_(shape),
      shared_(shape.size, 0),
      why_not_(shape.size),
      listening_(shape.size),
      links_(shape.size) {
  if (shared) try {
      segment_ = std::make_unique<Segment>(rank, shape);
    } catch (const Segment::Unavailable& e) {
      why_not_.assign(shape.size, e.what());
    }
  meeting_ = std::make_unique<Meeting>(rank, addresses);
}

Mesh::~Mesh() = default;

std::string Mesh::who(uint32_t peer) const {
  return "rank " + std::to_string(rank_) + ": rank " + std::to_string(peer);
}

// u32 rank | u32 size | u32 slot bytes | u32 depth | segment, zeros without one | addresses
std::string Mesh::endpoint() const {
  uint8_t e[kEndpointBytes] = {};
  store_be32(e, rank_);
  store_be32(e + 4, shape_.size);
  store_be32(e + 8, shape_.slot_bytes);
  store_be32(e + 12, shape_.depth);
  if (segment_) segment_->endpoint(e + 16);
  encode_addresses(meeting_->addresses(), e + 16 + Segment::kEndpointBytes);
  return std::string(reinterpret_cast<char*>(e), sizeof e);
}

void Mesh::connect(const std::vector<std::string>& endpoints, uint32_t slot_bytes) {
  if (!slot_bytes || slot_bytes % 64 || slot_bytes > shape_.slot_bytes)
    throw EngineError(ErrorKind::config, "rank " + std::to_string(rank_) + ": a slot cannot hold " +
                                             std::to_string(slot_bytes) + " bytes");
  if (endpoints.size() != shape_.size)
    throw EngineError(ErrorKind::handshake, "rank " + std::to_string(rank_) + ": wrong number of endpoints");
  for (uint32_t peer = 0; peer < shape_.size; peer++) {
    if (peer == rank_) continue;
    const std::string& text = endpoints[peer];
    const auto* e = reinterpret_cast<const uint8_t*>(text.data());
    if (text.size() != kEndpointBytes)
      throw EngineError(ErrorKind::handshake, who(peer) + "'s endpoint has the wrong length");
    if (load_be32(e) != peer || load_be32(e + 4) != shape_.size || load_be32(e + 8) != shape_.slot_bytes ||
        load_be32(e + 12) != shape_.depth)
      throw EngineError(ErrorKind::handshake,
                        who(peer) +
                            " has lanes of another shape; run the same version and configuration on every "
                            "rank");
    static constexpr uint8_t kNone[Segment::kEndpointBytes] = {};
    if (std::memcmp(e + 16, kNone, sizeof kNone) == 0)
      why_not_[peer] += why_not_[peer].empty() ? "it has no shared memory" : "";
    else if (segment_)
      segment_->map(peer, e + 16, why_not_[peer]);
    listening_[peer] = decode_addresses(e + 16 + Segment::kEndpointBytes);
  }
  shape_.slot_bytes = slot_bytes;
  lane_shapes_ = lane_shapes(shape_);
  if (segment_) segment_->allocate_lanes(slot_bytes);
}

void Mesh::agree(std::vector<Secret> conn_tx, std::vector<Secret> conn_rx, std::vector<uint32_t> hosts) {
  if (conn_tx.size() != shape_.size || conn_rx.size() != shape_.size || hosts.size() != shape_.size)
    throw EngineError(ErrorKind::config, "rank " + std::to_string(rank_) + ": wrong number of connection roots");
  hosts_ = std::move(hosts);
  bool any = false;
  for (uint32_t peer = 0; peer < shape_.size; peer++) {
    if (peer == rank_) continue;
    if (conn_tx[peer].size() != 32 || conn_rx[peer].size() != 32)
      throw EngineError(ErrorKind::config, who(peer) + "'s connection roots are missing");
    const bool beside = hosts_[peer] == hosts_[rank_];
    if (segment_ && !beside) segment_->unmap(peer);
    shared_[peer] = segment_ && beside && segment_->meets(peer);
    if (shared_[peer]) {
      any = true;
      reached_.push_back(peer);
      continue;
    }
    any_links_ = true;
    links_[peer].link = std::make_unique<Link>(peer, lane_shapes_, wanting_);
    if (segment_ && beside && why_not_[peer].empty()) why_not_[peer] = "it cannot map this rank's";
    meeting_->expect(peer, std::move(listening_[peer]), std::move(conn_tx[peer]), std::move(conn_rx[peer]));
  }
  // What nobody shares is given back.
  if (!any) segment_.reset();
  listening_.clear();
}

std::vector<uint32_t> Mesh::neighbours(uint32_t rank, uint32_t size) {
  std::vector<uint32_t> ranks{(rank + size - 1) % size, (rank + 1) % size};
  if (rank) ranks.push_back((rank - 1) / 2);
  for (uint64_t child : {2 * uint64_t{rank} + 1, 2 * uint64_t{rank} + 2})
    if (child < size) ranks.push_back(static_cast<uint32_t>(child));
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  ranks.erase(std::remove(ranks.begin(), ranks.end(), rank), ranks.end());
  return ranks;
}

bool Mesh::meet(int64_t until) {
  if (met_) return true;
  for (uint32_t peer : neighbours(rank_, shape_.size))
    if (!shared_[peer]) meeting_->want(peer, kForever);
  if (!meeting_->progress(until)) return false;
  met_ = true;
  if (any_links_) {
    epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_)
      throw EngineError(ErrorKind::config, std::string("no descriptor to wait for sockets: ") + std::strerror(errno));
  }
  for (auto& [peer, socket] : meeting_->take()) attach(peer, std::move(socket));
  if (meeting_->over()) stop_meeting();
  return true;
}

void Mesh::attach(uint32_t peer, Descriptor socket) {
  Watched& w = links_[peer];
  w.link->attach(std::move(socket));
  wanting_.erase(std::remove(wanting_.begin(), wanting_.end(), w.link.get()), wanting_.end());
  attached_.push_back(peer);
  reached_.insert(std::lower_bound(reached_.begin(), reached_.end(), peer), peer);
  watch(w);
}

void Mesh::meet_wanted() {
  const int64_t now = now_ns();
  if (now < next_meeting_) return;
  for (const Link* link : wanting_) meeting_->want(link->peer(), kAfterYou);
  meeting_->progress(0);
  for (auto& [peer, socket] : meeting_->take()) attach(peer, std::move(socket));
  next_meeting_ = now + (meeting_->busy() ? kMeetSoon : kMeetOften);
  if (meeting_->over()) stop_meeting();
}

void Mesh::stop_meeting() {
  if (!meeting_) return;
  strangers_ = meeting_->strangers();
  last_stranger_ = meeting_->last_stranger();
  meeting_.reset();
}

std::string Mesh::why_not_reached(uint32_t peer) const {
  if (!meeting_ || shared_[peer] || links_[peer].link->attached()) return "";
  return meeting_->why_missing(peer);
}

std::string Mesh::missing() const {
  std::string text;
  size_t named = 0;
  const auto ranks = meeting_ ? meeting_->missing() : std::vector<uint32_t>{};
  for (uint32_t peer : ranks) {
    if (named++ == 4) return text + "; and " + std::to_string(ranks.size() - 4) + " more";
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(peer) + ": " + meeting_->why_missing(peer);
    if (!why_not_[peer].empty()) text += " (no shared memory with it: " + why_not_[peer] + ")";
  }
  return text;
}

void Mesh::unlink() noexcept {
  if (segment_) segment_->unlink();
}

std::vector<Segment::Range> Mesh::ranges() const {
  return segment_ ? segment_->ranges() : std::vector<Segment::Range>{};
}

std::unique_ptr<LaneWriter> Mesh::link_writer(LaneKind kind, uint32_t peer) {
  return std::make_unique<LinkLaneWriter>(kind, shape_of(kind), std::vector<Link*>{links_[peer].link.get()}, nullptr);
}

std::unique_ptr<LaneReader> Mesh::link_reader(LaneKind kind, uint32_t peer) {
  return std::make_unique<LinkLaneReader>(kind, links_[peer].link.get());
}

std::unique_ptr<LaneWriter> Mesh::writer_to(uint32_t peer) {
  return shared_[peer] ? segment_->writer_to(peer) : link_writer(LaneKind::data, peer);
}

std::unique_ptr<LaneWriter> Mesh::writer_to_all() {
  if (!any_links_) return segment_->writer_to_all();
  std::vector<Link*> links;
  for (const Watched& w : links_)
    if (w.link && hosts_[w.link->peer()] == hosts_[rank_]) links.push_back(w.link.get());
  return std::make_unique<LinkLaneWriter>(LaneKind::all, shape_of(LaneKind::all), std::move(links),
                                          segment_ ? segment_->writer_to_all() : nullptr);
}

std::unique_ptr<LaneWriter> Mesh::control_to(uint32_t peer) {
  return shared_[peer] ? segment_->control_to(peer) : link_writer(LaneKind::control, peer);
}

std::unique_ptr<LaneReader> Mesh::reader_from(uint32_t peer) {
  return shared_[peer] ? segment_->reader_from(peer) : link_reader(LaneKind::data, peer);
}

std::unique_ptr<LaneReader> Mesh::reader_from_all(uint32_t peer) {
  return shared_[peer] ? segment_->reader_from_all(peer) : link_reader(LaneKind::all, peer);
}

std::unique_ptr<LaneReader> Mesh::control_from(uint32_t peer) {
  return shared_[peer] ? segment_->control_from(peer) : link_reader(LaneKind::control, peer);
}

std::unique_ptr<LaneWriter> Mesh::messages_to(uint32_t peer) {
  return shared_[peer] ? segment_->messages_to(peer) : link_writer(LaneKind::messages, peer);
}

std::unique_ptr<LaneReader> Mesh::messages_from(uint32_t peer) {
  return shared_[peer] ? segment_->messages_from(peer) : link_reader(LaneKind::messages, peer);
}

std::unique_ptr<LaneWriter> Mesh::bulk_to(uint32_t peer) {
  return shared_[peer] ? segment_->bulk_to(peer) : link_writer(LaneKind::bulk, peer);
}

std::unique_ptr<LaneReader> Mesh::bulk_from(uint32_t peer) {
  return shared_[peer] ? segment_->bulk_from(peer) : link_reader(LaneKind::bulk, peer);
}

void Mesh::allocate_messages(uint32_t peer) {
  if (shared_[peer]) segment_->allocate_messages(peer);
}

void Mesh::allocate_bulk(uint32_t peer) {
  if (shared_[peer]) segment_->allocate_bulk(peer);
}

bool Mesh::alive(uint32_t peer) {
  if (shared_[peer]) return segment_->alive(peer);
  Link& link = *links_[peer].link;
  return link.attached() ? link.alive() : !meeting_ || meeting_->alive(peer);
}

bool Mesh::ended(uint32_t peer) const {
  if (shared_[peer]) return !segment_->alive(peer);
  const Link& link = *links_[peer].link;
  return link.attached() ? link.ended() : meeting_ && !meeting_->alive(peer);
}

bool Mesh::flush() {
  bool all = true;
  for (uint32_t peer : attached_) {
    all &= links_[peer].link->flush();
    watch(links_[peer]);
  }
  for (const Link* link : wanting_) all &= !link->backlog();
  return all;
}

bool Mesh::pump() {
  if (!any_links_) return false;
  bool any = false;
  if (meeting_) meet_wanted();
  if (attached_.size() <= kFewLinks) {
    for (uint32_t peer : attached_) {
      Link& link = *links_[peer].link;
      any |= link.readable() && link.receive();
    }
  } else {
    epoll_event news[64];
    const int n = epoll_wait(epoll_.get(), news, 64, 0);
    for (int i = 0; i < n; i++) {
      Link& link = *links_[news[i].data.u32].link;
      any |= link.readable() && link.receive();
    }
  }
  flush();
  return any;
}

// Asks the kernel to report what there is to wait for: room only while something waits for it, nothing where there is
// nothing to come.
void Mesh::watch(Watched& w) {
  const uint32_t events = !w.link->readable() ? 0 : w.link->backlog() ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (events == w.events) return;
  epoll_event e{};
  e.events = events;
  e.data.u32 = w.link->peer();
  epoll_ctl(epoll_.get(), !w.events ? EPOLL_CTL_ADD : !events ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, w.link->socket(), &e);
  w.events = events;
}

void Mesh::laggards(std::vector<uint32_t>& ranks) const {
  for (const Watched& w : links_)
    if (w.link && w.link->backlog()) ranks.push_back(w.link->peer());
}

void Mesh::leave(int64_t until) {
  for (;;) {
    bool all = true;
    for (uint32_t peer : attached_) {
      Link& link = *links_[peer].link;
      all &= !link.alive() || link.leave();
    }
    if (all || now_ns() >= until) return;
    sleep_briefly();
  }
}

Alarm Mesh::alarm() const {
  if (attached_.empty()) return {segment_ ? segment_->bell() : &bell_, -1, false};
  return {segment_ ? segment_->bell() : &bell_, epoll_.get(), segment_ != nullptr};
}

}  // namespace securecoll
