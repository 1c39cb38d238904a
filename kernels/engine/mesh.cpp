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
      lane_shapes_(lane_shapes(shape)),
      shared_(shape.size, 0),
      why_not_(shape.size),
      listening_(shape.size),
      link_of_(shape.size, nullptr) {
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

void Mesh::connect(const std::vector<std::string>& endpoints) {
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
    any |= shared_[peer];
    if (shared_[peer]) continue;
    if (segment_ && beside && why_not_[peer].empty()) why_not_[peer] = "it cannot map this rank's";
    meeting_->expect(peer, std::move(listening_[peer]), std::move(conn_tx[peer]), std::move(conn_rx[peer]));
  }
  // What nobody shares is given back.
  if (!any) segment_.reset();
  listening_.clear();
}

bool Mesh::meet(int64_t until) {
  if (!meeting_) return true;
  if (!meeting_->progress(until)) return false;
  for (uint32_t peer = 0; peer < shape_.size; peer++) {
    if (peer == rank_ || shared_[peer]) continue;
    links_.push_back({std::make_unique<Link>(peer, meeting_->take(peer), lane_shapes_)});
    link_of_[peer] = links_.back().link.get();
  }
  strangers_ = meeting_->strangers();
  last_stranger_ = meeting_->last_stranger();
  meeting_.reset();
  if (links_.empty()) return true;
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_)
    throw EngineError(ErrorKind::config, std::string("no descriptor to wait for sockets: ") + std::strerror(errno));
  for (Watched& w : links_) watch(w);
  return true;
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
  return std::make_unique<LinkLaneWriter>(kind, shape_of(kind), std::vector<Link*>{link_of_[peer]}, nullptr);
}

std::unique_ptr<LaneReader> Mesh::link_reader(LaneKind kind, uint32_t peer) {
  return std::make_unique<LinkLaneReader>(kind, link_of_[peer]);
}

std::unique_ptr<LaneWriter> Mesh::writer_to(uint32_t peer) {
  return shared_[peer] ? segment_->writer_to(peer) : link_writer(LaneKind::data, peer);
}

std::unique_ptr<LaneWriter> Mesh::writer_to_all() {
  if (links_.empty()) return segment_->writer_to_all();
  std::vector<Link*> links;
  for (const Watched& w : links_)
    if (hosts_[w.link->peer()] == hosts_[rank_]) links.push_back(w.link.get());
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

bool Mesh::alive(uint32_t peer) { return shared_[peer] ? segment_->alive(peer) : link_of_[peer]->alive(); }

bool Mesh::flush() {
  bool all = true;
  for (Watched& w : links_) {
    all &= w.link->flush();
    watch(w);
  }
  return all;
}

bool Mesh::pump() {
  bool any = false;
  if (links_.size() <= kFewLinks) {
    for (Watched& w : links_) any |= w.link->readable() && w.link->receive();
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
  e.data.u32 = static_cast<uint32_t>(&w - links_.data());
  epoll_ctl(epoll_.get(), !w.events ? EPOLL_CTL_ADD : !events ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, w.link->socket(), &e);
  w.events = events;
}

void Mesh::laggards(std::vector<uint32_t>& ranks) const {
  for (const Watched& w : links_)
    if (w.link->backlog()) ranks.push_back(w.link->peer());
}

void Mesh::leave(int64_t until) {
  for (;;) {
    bool all = true;
    for (Watched& w : links_) all &= !w.link->alive() || w.link->leave();
    if (all || now_ns() >= until) return;
    sleep_briefly();
  }
}

Alarm Mesh::alarm() const {
  if (links_.empty()) return {segment_ ? segment_->bell() : &bell_, -1, false};
  return {segment_ ? segment_->bell() : &bell_, epoll_.get(), segment_ != nullptr};
}

}  // namespace securecoll
