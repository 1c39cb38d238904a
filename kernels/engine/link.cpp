#include "engine/link.hpp"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "engine/memory.hpp"
#include "engine/wire.hpp"

namespace securecoll {
namespace {

constexpr size_t kFramesAtOnce = 32;
// Of arrived bytes that one look takes in, so that records are opened while they are still in the cache.
constexpr size_t kReceiveAtOnce = 256 << 10;
// Of sealed bytes that wait to be sent together, for the same reason.
constexpr size_t kSendAtOnce = 256 << 10;
// While a record longer than this arrives, no more is read behind it than the next header: so the next long record
// goes straight into its slot, too. Behind a shorter one, whatever there is.
constexpr size_t kLong = 4096;
// How long a host may be silent that owes an acknowledgement; and where packets are known to get lost, which takes the
// kernel six transmissions of what is not acknowledged, in place of four.
constexpr uint32_t kSilenceMs = 1900, kSilenceWithLossMs = 7000;
// Known from this on: of a hundred segments one was sent again.
constexpr uint32_t kSegmentsPerLoss = 100;
// After so much silence of a peer that is waited for, its host is asked to acknowledge something.
constexpr uint32_t kPingAfterMs = 250;

}  // namespace

Slots::~Slots() { std::free(base_); }

uint8_t* Slots::take() {
  if (!base_) {
    const size_t stride = (size_t{shape_.bytes} + 63) / 64 * 64;
    base_ = static_cast<uint8_t*>(std::aligned_alloc(64, stride * shape_.depth));
    if (!base_) throw std::bad_alloc();
    for (size_t i = shape_.depth; i-- > 0;) free_.push_back(base_ + i * stride);
  }
  uint8_t* slot = free_.back();
  free_.pop_back();
  return slot;
}

void Link::attach(Descriptor socket) {
  socket_ = std::move(socket);
  wanted_ = true;
  buffer_ = std::make_unique<uint8_t[]>(kBufferBytes);
  for (size_t i = 0; i < kLaneKinds; i++) {
    in_[i].slots = std::make_unique<Slots>(shapes_[i]);
    in_[i].records.resize(shapes_[i].depth);
  }
}

const Link::Received& Link::record(LaneKind lane, uint64_t position) const {
  return in_[index(lane)].records[position % shapes_[index(lane)].depth];
}

void Link::give_back(LaneKind lane) {
  Inbound& in = in_[index(lane)];
  in.slots->give_back(record(lane, in.released).slot);
  in.released++;
}

Link::Frame Link::frame(FrameKind kind, size_t lane, uint64_t number, const uint8_t* record, uint32_t bytes) {
  Frame f{};
  f.header[0] = static_cast<uint8_t>(kind);
  f.header[1] = static_cast<uint8_t>(lane);
  store_be32(f.header + 4, static_cast<uint32_t>(number));
  store_be32(f.header + 8, bytes);
  f.record = record;
  f.bytes = bytes;
  f.is_record = kind == FrameKind::record;
  f.lane = static_cast<uint8_t>(lane);
  return f;
}

void Link::send(LaneKind lane, const uint8_t* record, uint32_t bytes) {
  Outbound& out = out_[index(lane)];
  const uint64_t number = out.queued++;
  if (deaf_ || shut_) {
    out.sent++;
    return;
  }
  queue_.push_back(frame(FrameKind::record, index(lane), number, record, bytes));
  queued_ += bytes;
  want();
  if (queued_ >= kSendAtOnce) flush();
}

// Credit goes back in batches, with whatever else is sent, and at once when the peer may be waiting for it.
void Link::queue_credit(bool anyway) {
  for (size_t i = 0; i < kLaneKinds; i++) {
    Inbound& in = in_[i];
    const uint64_t due = in.released - in.granted, depth = shapes_[i].depth;
    if (!due) continue;
    if (!anyway && due < (depth + 3) / 4 && in.received - in.granted < depth) continue;
    in.granted = in.released;
    // Ahead of what is queued, but not in the middle of a frame, and in place of an earlier one that has not left yet.
    auto at = queue_.begin() + (head_sent_ ? 1 : 0);
    while (at != queue_.end() && !at->is_record && at->lane != i) ++at;
    const Frame credit = frame(FrameKind::credit, i, in.granted, nullptr, 0);
    if (at != queue_.end() && !at->is_record)
      *at = credit;
    else
      queue_.insert(at, credit);
  }
}

bool Link::flush() {
  if (deaf_ || shut_) return true;
  if (!attached()) return queue_.empty();
  queue_credit(!queue_.empty());
  while (!queue_.empty()) {
    iovec parts[2 * kFramesAtOnce];
    size_t count = 0, wanted = 0, skip = head_sent_;
    for (size_t i = 0; i < std::min(queue_.size(), kFramesAtOnce); i++) {
      Frame& f = queue_[i];
      if (skip < kHeaderBytes) parts[count++] = {f.header + skip, kHeaderBytes - skip};
      const size_t into = skip > kHeaderBytes ? skip - kHeaderBytes : 0;
      if (f.bytes) parts[count++] = {const_cast<uint8_t*>(f.record) + into, f.bytes - into};
      wanted += kHeaderBytes + f.bytes - skip;
      skip = 0;
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return false;
      // The peer takes nothing any more. What it sent before may still be read; then receive() finds the end.
      deaf_ = true;
      queue_.clear();
      queued_ = head_sent_ = 0;
      for (Outbound& out : out_) out.sent = out.queued;
      return true;
    }
    sent(static_cast<size_t>(n));
    if (static_cast<size_t>(n) < wanted) return false;
  }
  return true;
}

void Link::sent(size_t bytes) {
  head_sent_ += bytes;
  while (!queue_.empty()) {
    const Frame& f = queue_.front();
    if (head_sent_ < kHeaderBytes + f.bytes) return;
    head_sent_ -= kHeaderBytes + f.bytes;
    if (f.is_record) out_[f.lane].sent++;
    queued_ -= f.bytes;
    queue_.pop_front();
  }
}

bool Link::receive() {
  size_t taken = 0;
  while (readable() && taken < kReceiveAtOnce) {
    iovec parts[2];
    int count = 0;
    size_t wanted = 0;
    if (record_left_) parts[count++] = {record_at_, record_left_};
    parts[count++] = {buffer_.get() + filled_, record_left_ > kLong ? kHeaderBytes : kBufferBytes - filled_};
    for (int i = 0; i < count; i++) wanted += parts[i].iov_len;
    const ssize_t n = readv(socket_.get(), parts, count);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) ended_ = true;
      break;
    }
    if (n == 0) {
      ended_ = true;
      break;
    }
    taken += static_cast<size_t>(n);
    const size_t of_record = std::min<size_t>(static_cast<size_t>(n), record_left_);
    if (of_record) {
      record_at_ += of_record;
      record_left_ -= static_cast<uint32_t>(of_record);
      if (!record_left_) in_[record_lane_].received++;
    }
    filled_ += static_cast<size_t>(n) - of_record;
    parse();
    if (static_cast<size_t>(n) < wanted) break;  // there was no more
  }
  return taken != 0;
}

void Link::parse() {
  size_t at = 0;
  while (!record_left_ && filled_ - at >= kHeaderBytes) {
    if (!begin_frame(buffer_.get() + at)) {
      violated_ = true;
      return;
    }
    at += kHeaderBytes;
    const size_t here = std::min<size_t>(record_left_, filled_ - at);
    if (!here) continue;
    std::memcpy(record_at_, buffer_.get() + at, here);
    record_at_ += here;
    record_left_ -= static_cast<uint32_t>(here);
    at += here;
    if (!record_left_) in_[record_lane_].received++;
  }
  filled_ -= at;
  if (at && filled_) std::memmove(buffer_.get(), buffer_.get() + at, filled_);
}

bool Link::begin_frame(const uint8_t header[kHeaderBytes]) {
  const uint8_t kind = header[0], lane = header[1];
  const uint32_t number = load_be32(header + 4), bytes = load_be32(header + 8);
  if (lane >= kLaneKinds || load_be16(header + 2) != 0) return false;
  if (kind == static_cast<uint8_t>(FrameKind::ping)) return !lane && !number && !bytes;
  if (kind == static_cast<uint8_t>(FrameKind::credit)) {
    Outbound& out = out_[lane];
    const uint32_t more = number - static_cast<uint32_t>(out.returned);
    if (bytes || !more || more > out.sent - out.returned) return false;
    out.returned += more;
    return true;
  }
  Inbound& in = in_[lane];
  if (kind != static_cast<uint8_t>(FrameKind::record) || number != static_cast<uint32_t>(in.received) ||
      bytes < kTagBytes || bytes > shapes_[lane].bytes || in.received - in.granted >= shapes_[lane].depth)
    return false;
  Received& record = in.records[in.received % shapes_[lane].depth];
  record = {in.slots->take(), bytes};
  record_at_ = record.slot;
  record_left_ = bytes;
  record_lane_ = lane;
  return true;
}

// A process that ends closes its sockets. A host that vanishes does not: it is known by its silence. TCP_USER_TIMEOUT
// would see to that, but it also ends a connection whose peer is well and merely has no room, because it is busy
// elsewhere; so the question is asked here. The kernel of a busy peer acknowledges what comes, a silent host does not.
// Keep-alive probes are a second apart: two lost ones would be the end of an idle connection. A ping is sent again
// sooner, and more often.
bool Link::alive() {
  if (ended_) return false;
  if (!attached()) return true;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return true;
  const bool owes = info.tcpi_unacked || info.tcpi_notsent_bytes || !queue_.empty();
  if (!owes && !deaf_ && !shut_ && info.tcpi_last_ack_recv > kPingAfterMs) {
    queue_.push_back(frame(FrameKind::ping, 0, 0, nullptr, 0));
    flush();
  }
  // Two: the first may be under way.
  const bool unanswered = (info.tcpi_unacked && info.tcpi_retransmits >= 2) || info.tcpi_probes >= 2;
  const uint32_t earlier =
      info.tcpi_total_retrans - std::min<uint32_t>(info.tcpi_retransmits, info.tcpi_total_retrans);
  // A tail that was lost once proves nothing about the way; its host may have gone.
  const bool loses = earlier > 2 && uint64_t{earlier} * kSegmentsPerLoss > info.tcpi_segs_out;
  if (!unanswered || info.tcpi_last_ack_recv <= (loses ? kSilenceWithLossMs : kSilenceMs)) return true;
  // Should it hear after all: the news of this end would wait behind what got lost, a reset does not.
  const linger at_once{1, 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  return false;
}

bool Link::leave() {
  if (!shut_) {
    if (!flush()) return false;
    shutdown(socket_.get(), SHUT_WR);
    shut_ = true;
  }
  while (!ended_) {
    const ssize_t n = recv(socket_.get(), buffer_.get(), kBufferBytes, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) ended_ = true;
  }
  int under_way = 0;
  return ioctl(socket_.get(), SIOCOUTQ, &under_way) != 0 || under_way == 0;
}

LinkLaneWriter::LinkLaneWriter(LaneKind lane, LaneShape shape, std::vector<Link*> links,
                               std::unique_ptr<LaneWriter> local)
    : lane_(lane),
      slots_(shape),
      links_(std::move(links)),
      local_(std::move(local)),
      records_(shape.depth),
      free_until_(shape.depth) {}

uint8_t* LinkLaneWriter::acquire() {
  const uint64_t depth = slots_.shape().depth;
  if (position_ >= free_until_) {
    uint64_t least = position_;
    for (const Link* link : links_) least = std::min(least, link->returned(lane_));
    free_until_ = least + depth;
  }
  for (const Link* link : links_) {
    violated_ |= link->violated();
    // Whom this rank has no socket with gets no news from it: others pass them on.
    if (lane_ == LaneKind::control && !link->attached()) return nullptr;
  }
  if (violated_ || position_ >= free_until_) return nullptr;
  if (local_ && !(next_.local = local_->acquire())) {
    violated_ = local_->violated();
    return nullptr;
  }
  if (!next_.slot) {
    uint64_t sent = position_;
    for (const Link* link : links_) sent = std::min(sent, link->sent(lane_));
    for (; sent_ < sent; sent_++) slots_.give_back(records_[sent_ % depth].slot);
    next_.slot = slots_.take();
  }
  return next_.slot;
}

void LinkLaneWriter::reserve(uint32_t bytes) {
  next_.bytes = bytes;
  records_[position_ % records_.size()] = next_;
  next_ = Record{};
  if (local_) local_->reserve(bytes);
  position_++;
}

void LinkLaneWriter::publish() {
  const Record& record = records_[published_ % records_.size()];
  const uint8_t* sealed = record.slot;
  published_++;
  if (local_) {
    std::memcpy(record.local, sealed, record.bytes);
    local_->publish();
  }
  for (Link* link : links_) {
    link->send(lane_, sealed, record.bytes);
    // Data leaves with the rest of its operation's turn. For control there is no later.
    if (lane_ == LaneKind::control) link->flush();
  }
}

void LinkLaneWriter::laggards(std::vector<uint32_t>& ranks) const {
  for (const Link* link : links_)
    if (link->returned(lane_) + slots_.shape().depth <= published_) ranks.push_back(link->peer());
  if (local_) local_->laggards(ranks);
}

const uint8_t* LinkLaneReader::peek(uint32_t bytes) {
  if (position_ == link_->received(lane_)) {
    // A collective waits for this peer. The other lanes are looked at whether or not anyone waits.
    if (lane_ == LaneKind::data || lane_ == LaneKind::all) link_->want();
    return nullptr;
  }
  const Link::Received& record = link_->record(lane_, position_);
  if (record.bytes != bytes) {
    violated_ = true;
    return nullptr;
  }
  return record.slot;
}

}  // namespace securecoll
