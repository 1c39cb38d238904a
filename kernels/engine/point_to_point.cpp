#include "engine/point_to_point.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/wire.hpp"

namespace securecoll {
namespace {

constexpr int kRecordsPerRound = 8;  // of one peer and lane, so that collectives and other peers get their turns
// What a held message costs beside its payload. Both ends count it.
constexpr uint64_t kHeldEnvelope = 64;
constexpr uint64_t kTellConsumed = PointToPoint::kHeldBytes / 4;

uint64_t charge(uint64_t bytes) { return bytes + kHeldEnvelope; }

}  // namespace

RecordContext MeteredStream::next(Memory& memory, uint64_t sequence, uint32_t number, uint32_t length) {
  const uint64_t cost = (uint64_t{length} + 15) / 16 + 3;
  if (used_ + cost > budget_) {
    stream_.step_epoch();
    used_ = 0;
  }
  used_ += cost;
  return stream_.record(memory, sequence, number, length, 0);
}

// u64 tag | u64 bytes | u8 dtype | u8 kind | zeros
void PointToPoint::Envelope::encode(uint8_t out[kEnvelopeBytes]) const {
  std::memset(out, 0, kEnvelopeBytes);
  store_be64(out, tag);
  store_be64(out + 8, bytes);
  out[16] = static_cast<uint8_t>(dtype);
  out[17] = static_cast<uint8_t>(kind);
}

bool PointToPoint::Envelope::decode(const uint8_t in[kEnvelopeBytes]) {
  tag = load_be64(in);
  bytes = load_be64(in + 8);
  if (in[16] >= kDTypes || in[17] > static_cast<uint8_t>(Kind::consumed)) return false;
  for (size_t i = 18; i < kEnvelopeBytes; i++)
    if (in[i]) return false;
  dtype = static_cast<DType>(in[16]);
  kind = static_cast<Kind>(in[17]);
  return kind != Kind::eager || bytes <= kEagerBytes;
}

PointToPoint::PointToPoint(Shape shape, Memory* memory, Mesh* mesh, Counters& counters)
    : shape_(shape), memory_(memory), mesh_(mesh), counters_(counters), peers_(shape.size) {}

void PointToPoint::connect(uint32_t peer, Secret tx, Secret rx) {
  Peer& p = peers_[peer];
  p.writer = mesh_->messages_to(peer);
  p.reader = mesh_->messages_from(peer);
  p.bulk_writer = mesh_->bulk_to(peer);
  p.bulk_reader = mesh_->bulk_from(peer);
  auto tx_streams = Stream::point_to_point(std::move(tx), 0);
  auto rx_streams = Stream::point_to_point(std::move(rx), 0);
  p.tx = MeteredStream(std::move(tx_streams.first), shape_.budget_blocks);
  p.bulk_tx = MeteredStream(std::move(tx_streams.second), shape_.budget_blocks);
  p.rx = MeteredStream(std::move(rx_streams.first), shape_.budget_blocks);
  p.bulk_rx = MeteredStream(std::move(rx_streams.second), shape_.budget_blocks);
}

void PointToPoint::prepare(uint32_t peer, bool bulk) {
  mesh_->allocate_messages(peer);
  if (bulk) mesh_->allocate_bulk(peer);
}

void PointToPoint::fail(ErrorKind kind, uint32_t peer, std::string text) {
  if (failed()) return;
  failure_.kind = kind;
  failure_.peer = peer;
  failure_.text = std::move(text);
}

void PointToPoint::erase() noexcept {
  for (Peer& p : peers_)
    for (MeteredStream* s : {&p.tx, &p.rx, &p.bulk_tx, &p.bulk_rx}) s->erase();
}

void PointToPoint::finish(Operation* op) {
  unfinished_.erase(op->entry);
  done_.push_back(op);
}

void PointToPoint::post(Operation* op) {
  op->entry = unfinished_.insert(unfinished_.end(), op);
  const uint64_t bytes = op->buffers[0].bytes();
  if (op->call.collective == Collective::send) {
    Peer& p = peers_[op->call.root];
    Outgoing out;
    out.envelope = {op->call.tag, bytes, op->call.dtype, Kind::announced};
    out.op = op;
    if (bytes <= kEagerBytes && p.unconsumed - p.consumed_there + charge(bytes) <= kHeldBytes) {
      out.envelope.kind = Kind::eager;
      p.unconsumed += charge(bytes);
    }
    p.outgoing.push_back(std::move(out));
    return;
  }
  // The oldest message that it takes.
  const bool any = op->call.root == kAnySource;
  uint32_t from = 0;
  std::list<Incoming>::iterator found;
  bool have = false;
  for (uint32_t p = any ? 0 : op->call.root; p < shape_.size; p++) {
    auto& incoming = peers_[p].incoming;
    const auto first = std::find_if(incoming.begin(), incoming.end(),
                                    [&](const Incoming& m) { return !m.to && m.envelope.tag == op->call.tag; });
    if (first != incoming.end() && (!have || first->arrival < found->arrival)) {
      from = p;
      found = first;
      have = true;
    }
    if (!any) break;
  }
  if (have) {
    give(from, found, op);
    return;
  }
  posted_.push_back(op);
  if (any) {
    any_++;
  } else {
    peers_[op->call.root].expecting++;
    mesh_->want(op->call.root);
  }
}

void PointToPoint::match(uint32_t p, std::list<Incoming>::iterator message) {
  const auto taker = std::find_if(posted_.begin(), posted_.end(), [&](const Operation* op) {
    return op->call.tag == message->envelope.tag && (op->call.root == p || op->call.root == kAnySource);
  });
  if (taker == posted_.end()) return;
  Operation* op = *taker;
  posted_.erase(taker);
  if (op->call.root == kAnySource)
    any_--;
  else
    peers_[p].expecting--;
  give(p, message, op);
}

void PointToPoint::give(uint32_t p, std::list<Incoming>::iterator message, Operation* op) {
  const Envelope& e = message->envelope;
  if (e.dtype != op->call.dtype || e.bytes != op->buffers[0].bytes()) {
    failure_.ours = op->call;
    failure_.theirs = {Collective::send, e.dtype, RedOp::none, shape_.rank, e.bytes, e.tag};
    if (const uint64_t size = element_bytes(e.dtype)) failure_.theirs.count /= size;
    fail(ErrorKind::mismatch, p, "");
    return;
  }
  op->source = p;
  if (e.kind == Kind::announced) {
    answer(p, {message->number, 0, DType::none, Kind::clear});
    peers_[p].bulk_in.push_back({op, message->number, 0});
    peers_[p].incoming.erase(message);
    return;
  }
  message->to = op;
  if (message->whole()) deliver(p, message);
}

// All of an eager message is here, and a receive that takes it.
void PointToPoint::deliver(uint32_t p, std::list<Incoming>::iterator message) {
  Peer& peer = peers_[p];
  const uint64_t bytes = message->envelope.bytes;
  if (message->held && bytes) message->to->buffers[0].scatter(*memory_, Queue::receive, 0, bytes, message->held.get());
  peer.consumed_here += charge(bytes);
  if (peer.consumed_here - peer.consumed_told >= kTellConsumed) {
    peer.consumed_told = peer.consumed_here;
    answer(p, {0, peer.consumed_here, DType::none, Kind::consumed});
  }
  Operation* op = message->to;
  peer.incoming.erase(message);
  finish(op);
}

// Ahead of all messages but the one that is half sealed.
void PointToPoint::answer(uint32_t p, Envelope envelope) {
  auto& outgoing = peers_[p].outgoing;
  auto at = outgoing.begin();
  while (at != outgoing.end() && (at->begun || !at->op)) ++at;
  Outgoing out;
  out.envelope = envelope;
  outgoing.insert(at, std::move(out));
}

uint32_t PointToPoint::chunk(uint64_t bytes, uint64_t offset) const {
  return static_cast<uint32_t>(std::min<uint64_t>(shape_.slot_bytes, bytes - offset));
}

const uint8_t* PointToPoint::peek(uint32_t p, LaneReader& reader, uint32_t bytes) {
  const uint8_t* slot = reader.peek(bytes + kTagBytes);
  if (!slot && reader.violated())
    fail(ErrorKind::authentication, p,
         "the lane words shared with rank " + std::to_string(p) + " moved as no honest peer moves them");
  return slot;
}

uint8_t* PointToPoint::acquire(uint32_t p, LaneWriter& writer) {
  uint8_t* slot = writer.acquire();
  if (!slot && writer.violated())
    fail(ErrorKind::authentication, p,
         "the lane words shared with rank " + std::to_string(p) + " moved as no honest peer moves them");
  return slot;
}

void PointToPoint::seal(MeteredStream& stream, LaneWriter& writer, uint8_t* slot, uint64_t number, uint32_t record,
                        const uint8_t* plain, uint32_t bytes) {
  memory_->seal(Queue::send, stream.next(*memory_, number, record, bytes), plain, bytes, &slot, 1, nullptr);
  writer.reserve(bytes + kTagBytes);
  writer.publish();
  counters_.bytes_sealed.fetch_add(bytes, std::memory_order_relaxed);
  counters_.records_sealed.fetch_add(1, std::memory_order_relaxed);
}

bool PointToPoint::open(uint32_t p, MeteredStream& stream, LaneReader& reader, const uint8_t* slot, uint64_t number,
                        uint32_t record, Operation* op, uint8_t* held, uint64_t offset, uint32_t bytes) {
  // A receive's buffer is written before the record verified: nobody reads it before the receive completes, and a
  // failure zeroes it.
  uint8_t* to = op ? op->buffers[0].contiguous(offset, bytes) : held + offset;
  uint8_t* at = to ? to : staging_.in(*memory_, shape_.slot_bytes);
  if (memory_->open(stream.next(*memory_, number, record, bytes), slot, bytes, at, nullptr).refused) {
    fail(ErrorKind::authentication, p,
         "a record on the lane from rank " + std::to_string(p) +
             " failed authentication; the host or the network changed it, or the ranks do not run the same program; "
             "nothing of it was used");
    return false;
  }
  if (!to) op->buffers[0].scatter(*memory_, Queue::receive, offset, bytes, at);
  reader.take();
  reader.release();
  counters_.bytes_opened.fetch_add(bytes, std::memory_order_relaxed);
  counters_.records_opened.fetch_add(1, std::memory_order_relaxed);
  return true;
}

const uint8_t* PointToPoint::plain_of(Operation& op, uint64_t offset, uint32_t bytes) {
  if (const uint8_t* at = op.buffers[0].contiguous(offset, bytes)) return at;
  uint8_t* room = staging_.in(*memory_, shape_.slot_bytes);
  op.buffers[0].gather(*memory_, Queue::send, offset, bytes, room);
  return room;
}

bool PointToPoint::take_envelope(uint32_t p, const uint8_t* slot) {
  Peer& peer = peers_[p];
  uint8_t plain[kEnvelopeBytes];
  const uint64_t number = peer.received;
  if (!open(p, peer.rx, *peer.reader, slot, number, 0, nullptr, plain, 0, kEnvelopeBytes)) return false;
  peer.received++;
  Envelope e;
  const auto impossible = [&] {
    fail(ErrorKind::authentication, p,
         "rank " + std::to_string(p) + " sent an envelope that no honest peer sends; run the same version everywhere");
    return false;
  };
  if (!e.decode(plain)) return impossible();
  switch (e.kind) {
    case Kind::clear: {
      const auto found = peer.announced.find(e.tag);
      if (found == peer.announced.end()) return impossible();
      peer.bulk_out.push_back({found->second, e.tag, 0});
      peer.announced.erase(found);
      return true;
    }
    case Kind::consumed:
      if (e.bytes < peer.consumed_there || e.bytes > peer.unconsumed) return impossible();
      peer.consumed_there = e.bytes;
      return true;
    case Kind::eager:
    case Kind::announced:
      break;
  }
  Incoming m;
  m.envelope = e;
  m.number = number;
  m.arrival = arrivals_++;
  const auto message = peer.incoming.insert(peer.incoming.end(), std::move(m));
  if (e.kind == Kind::eager && e.bytes) peer.opening = true;
  match(p, message);
  if (failed()) return false;
  if (peer.opening && !message->to) message->held = std::make_unique<uint8_t[]>(e.bytes);
  return true;
}

bool PointToPoint::take_payload(uint32_t p, const uint8_t* slot) {
  Peer& peer = peers_[p];
  const auto message = std::prev(peer.incoming.end());
  const uint64_t bytes = message->envelope.bytes;
  const uint32_t n = chunk(bytes, message->opened);
  const auto record = static_cast<uint32_t>(1 + message->opened / shape_.slot_bytes);
  // Room that was begun before a receive asked for the message is used to its end.
  Operation* to = message->held ? nullptr : message->to;
  if (!open(p, peer.rx, *peer.reader, slot, message->number, record, to, message->held.get(), message->opened, n))
    return false;
  message->opened += n;
  if (message->opened < bytes) return true;
  peer.opening = false;
  if (message->to) deliver(p, message);
  return true;
}

bool PointToPoint::read_messages(uint32_t p) {
  Peer& peer = peers_[p];
  for (int i = 0; i < kRecordsPerRound; i++) {
    const uint32_t bytes = peer.opening ? chunk(peer.incoming.back().envelope.bytes, peer.incoming.back().opened)
                                        : static_cast<uint32_t>(kEnvelopeBytes);
    const uint8_t* slot = peek(p, *peer.reader, bytes);
    if (!slot) return i > 0 || failed();
    if (!(peer.opening ? take_payload(p, slot) : take_envelope(p, slot))) return true;
  }
  return true;
}

bool PointToPoint::read_bulk(uint32_t p) {
  Peer& peer = peers_[p];
  for (int i = 0; i < kRecordsPerRound; i++) {
    if (peer.bulk_in.empty()) return i > 0;
    Bulk& b = peer.bulk_in.front();
    const uint64_t bytes = b.op->buffers[0].bytes();
    const uint32_t n = chunk(bytes, b.moved);
    const uint8_t* slot = peek(p, *peer.bulk_reader, n);
    if (!slot) return i > 0 || failed();
    const auto record = static_cast<uint32_t>(b.moved / shape_.slot_bytes);
    if (!open(p, peer.bulk_rx, *peer.bulk_reader, slot, b.number, record, b.op, nullptr, b.moved, n)) return true;
    b.moved += n;
    if (b.moved < bytes) continue;
    Operation* op = b.op;
    peer.bulk_in.pop_front();
    finish(op);
  }
  return true;
}

bool PointToPoint::write_messages(uint32_t p) {
  Peer& peer = peers_[p];
  for (int i = 0; i < kRecordsPerRound; i++) {
    if (peer.outgoing.empty()) return i > 0;
    Outgoing& out = peer.outgoing.front();
    if (!out.op) prepare(p, false);
    uint8_t* slot = acquire(p, *peer.writer);
    if (!slot) return i > 0 || failed();
    const uint64_t bytes = out.envelope.bytes;
    if (!out.begun) {
      out.begun = true;
      out.number = peer.sent++;
      uint8_t plain[kEnvelopeBytes];
      out.envelope.encode(plain);
      seal(peer.tx, *peer.writer, slot, out.number, 0, plain, kEnvelopeBytes);
      if (out.envelope.kind == Kind::announced) peer.announced.emplace(out.number, out.op);
    } else {
      const uint32_t n = chunk(bytes, out.sealed);
      const auto record = static_cast<uint32_t>(1 + out.sealed / shape_.slot_bytes);
      seal(peer.tx, *peer.writer, slot, out.number, record, plain_of(*out.op, out.sealed, n), n);
      out.sealed += n;
    }
    if (out.envelope.kind == Kind::eager && out.sealed < bytes) continue;
    Operation* op = out.envelope.kind == Kind::eager ? out.op : nullptr;
    peer.outgoing.pop_front();
    if (op) finish(op);
  }
  return true;
}

bool PointToPoint::write_bulk(uint32_t p) {
  Peer& peer = peers_[p];
  for (int i = 0; i < kRecordsPerRound; i++) {
    if (peer.bulk_out.empty()) return i > 0;
    uint8_t* slot = acquire(p, *peer.bulk_writer);
    if (!slot) return i > 0 || failed();
    Bulk& b = peer.bulk_out.front();
    const uint64_t bytes = b.op->buffers[0].bytes();
    const uint32_t n = chunk(bytes, b.moved);
    const auto record = static_cast<uint32_t>(b.moved / shape_.slot_bytes);
    seal(peer.bulk_tx, *peer.bulk_writer, slot, b.number, record, plain_of(*b.op, b.moved, n), n);
    b.moved += n;
    if (b.moved < bytes) continue;
    Operation* op = b.op;
    peer.bulk_out.pop_front();
    finish(op);
  }
  return true;
}

PointToPoint::Progress PointToPoint::progress(std::vector<Operation*>& done, bool everyone) {
  bool moved = !done_.empty();  // posting may have finished some, or failed
  for (uint32_t p = 0; p < shape_.size && !failed(); p++) {
    if (p == shape_.rank || !(peers_[p].busy() || ((everyone || any_) && mesh_->reaches(p)))) continue;
    moved |= read_messages(p);
    if (!failed()) moved |= read_bulk(p);
    if (!failed()) moved |= write_messages(p);
    if (!failed()) moved |= write_bulk(p);
  }
  done.insert(done.end(), done_.begin(), done_.end());
  done_.clear();
  if (failed()) return Progress::failed;
  return moved ? Progress::moved : Progress::blocked;
}

std::vector<uint32_t> PointToPoint::awaited(const Operation& op) const {
  const uint32_t peer =
      op.call.collective == Collective::receive && op.call.root == kAnySource ? op.source : op.call.root;
  if (peer != kAnySource) return {peer};
  std::vector<uint32_t> ranks;
  for (uint32_t p = 0; p < shape_.size; p++)
    if (p != shape_.rank) ranks.push_back(p);
  return ranks;
}

}  // namespace securecoll
