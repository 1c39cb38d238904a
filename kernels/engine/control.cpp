#include "engine/control.hpp"

#include <cstring>
#include <utility>

#include "engine/wire.hpp"

namespace securecoll {

// u8 kind | u8 error | u8 collective | u8 dtype | u8 redop | 3 zero | u32 rank | u32 root | u64 sequence | u64 count |
// u64 sends | u64 expects | u32 subject | u64 tag | u64 other count | u8 other collective | u8 other dtype | 2 zero |
// u32 origin | zeros
void ControlMessage::encode(uint8_t out[kControlBytes]) const {
  std::memset(out, 0, kControlBytes);
  out[0] = static_cast<uint8_t>(kind);
  out[1] = static_cast<uint8_t>(error);
  out[2] = static_cast<uint8_t>(call.collective);
  out[3] = static_cast<uint8_t>(call.dtype);
  out[4] = static_cast<uint8_t>(call.redop);
  store_be32(out + 8, rank);
  store_be32(out + 12, call.root);
  store_be64(out + 16, sequence);
  store_be64(out + 24, call.count);
  store_be64(out + 32, sends);
  store_be64(out + 40, expects);
  store_be32(out + 48, subject);
  store_be64(out + 52, call.tag);
  store_be64(out + 60, other.count);
  out[68] = static_cast<uint8_t>(other.collective);
  out[69] = static_cast<uint8_t>(other.dtype);
  store_be32(out + 72, origin);
}

bool ControlMessage::decode(const uint8_t in[kControlBytes]) {
  if (in[0] < 1 || in[0] > 4 || in[1] > static_cast<uint8_t>(ErrorKind::closed) || in[3] >= kDTypes ||
      in[4] >= kRedOps || in[69] >= kDTypes)
    return false;
  kind = static_cast<ControlKind>(in[0]);
  error = static_cast<ErrorKind>(in[1]);
  call.collective = static_cast<Collective>(in[2]);
  call.dtype = static_cast<DType>(in[3]);
  call.redop = static_cast<RedOp>(in[4]);
  rank = load_be32(in + 8);
  call.root = load_be32(in + 12);
  sequence = load_be64(in + 16);
  call.count = load_be64(in + 24);
  sends = load_be64(in + 32);
  expects = load_be64(in + 40);
  subject = load_be32(in + 48);
  call.tag = other.tag = load_be64(in + 52);
  other.count = load_be64(in + 60);
  other.collective = static_cast<Collective>(in[68]);
  other.dtype = static_cast<DType>(in[69]);
  origin = load_be32(in + 72);
  return true;
}

ControlLink::ControlLink(std::unique_ptr<LaneWriter> writer, std::unique_ptr<LaneReader> reader, Stream tx, Stream rx,
                         Memory* memory)
    : writer_(std::move(writer)),
      reader_(std::move(reader)),
      tx_(std::move(tx)),
      rx_(std::move(rx)),
      memory_(memory) {}

bool ControlLink::send(const ControlMessage& message) {
  if (tx_.erased()) return false;
  uint8_t* slot = writer_->acquire();
  if (!slot) return false;
  uint8_t plain[kControlBytes];
  message.encode(plain);
  memory_->seal(Queue::send, tx_.record(*memory_, sent_++, 0, kControlBytes, 0), plain, kControlBytes, &slot, 1,
                nullptr);
  writer_->reserve(kControlBytes + kTagBytes);
  writer_->publish();
  return true;
}

ControlLink::Received ControlLink::receive(ControlMessage& message) {
  const uint8_t* slot = reader_->peek(kControlBytes + kTagBytes);
  if (!slot) return reader_->violated() ? Received::forged : Received::nothing;
  if (rx_.erased()) return Received::forged;
  uint8_t plain[kControlBytes];
  if (memory_->open(rx_.record(*memory_, received_, 0, kControlBytes, 0), slot, kControlBytes, plain, nullptr).refused)
    return Received::forged;
  received_++;
  reader_->take();
  reader_->release();
  return message.decode(plain) ? Received::message : Received::forged;
}

void ControlLink::erase() noexcept {
  tx_.erase();
  rx_.erase();
}

}  // namespace securecoll
