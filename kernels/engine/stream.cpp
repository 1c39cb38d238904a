#include "engine/stream.hpp"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "engine/kdf.hpp"
#include "engine/wire.hpp"

namespace securecoll {

Stream::Stream(Secret root, uint16_t channel, Use use) : root_(std::move(root)), channel_(channel), use_(use) {}

std::pair<Stream, Stream> Stream::point_to_point(Secret root, uint16_t channel) {
  Secret copy(root.data(), root.size());
  return {Stream(std::move(root), channel, Use::point_to_point), Stream(std::move(copy), channel, Use::bulk)};
}

Stream::Stream(Stream&& o) noexcept { *this = std::move(o); }

Stream& Stream::operator=(Stream&& o) noexcept {
  if (this == &o) return *this;
  erase();
  root_ = std::move(o.root_);
  iv_ = std::move(o.iv_);
  for (int i = 0; i < 2; i++) expanded_[i] = std::exchange(o.expanded_[i], Expanded{});
  epoch_ = o.epoch_;
  channel_ = o.channel_;
  use_ = o.use_;
  return *this;
}

const void* Stream::key(Memory& memory) {
  Expanded* room = nullptr;
  for (Expanded& e : expanded_) {
    if (e.memory == &memory) return e.key;
    if (!e.memory && !room) room = &e;
  }
  if (!room) throw std::logic_error("a stream serves two memories at most");
  uint8_t context[3];
  store_be16(context, channel_);
  context[2] = static_cast<uint8_t>(use_);
  const Secret secret = expand_label(root_, "stream", context, sizeof context, 32);
  const Secret raw = expand_label(secret, "key", "", 0, 32);
  if (iv_.empty()) iv_ = expand_label(secret, "iv", "", 0, kNonceBytes);
  room->key = memory.expand(raw.data());
  room->memory = &memory;
  return room->key;
}

RecordContext Stream::record(Memory& memory, uint64_t sequence, uint32_t number, uint32_t length,
                             uint64_t descriptor) {
  RecordContext r;
  r.key = key(memory);
  // nonce = iv XOR (4 zero bytes || u40 sequence || u24 record)
  uint8_t counter[8];
  store_be64(counter, sequence << 24 | number);
  std::memcpy(r.nonce, iv_.data(), kNonceBytes);
  for (int i = 0; i < 8; i++) r.nonce[4 + i] ^= counter[i];
  uint8_t* a = r.associated;
  a[0] = static_cast<uint8_t>(use_);
  a[1] = 0;
  store_be16(a + 2, channel_);
  store_be32(a + 4, number);
  store_be64(a + 8, sequence);
  store_be32(a + 16, length);
  store_be32(a + 20, epoch_);
  store_be64(a + 24, descriptor);
  return r;
}

void Stream::step_epoch() {
  Secret next = expand_label(root_, "upd", "", 0, 32);
  const uint32_t epoch = epoch_ + 1;
  erase();
  root_ = std::move(next);
  epoch_ = epoch;
}

void Stream::erase() noexcept {
  root_.erase();
  iv_.erase();
  for (Expanded& e : expanded_) {
    if (e.memory) e.memory->discard(e.key);
    e = Expanded{};
  }
}

}  // namespace securecoll
