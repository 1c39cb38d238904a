// Control: fixed records beside the data, on streams of their own, by which peers explain failures to each other.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/lane.hpp"
#include "engine/operation.hpp"
#include "engine/stream.hpp"

namespace securecoll {

inline constexpr size_t kControlBytes = 128;

// NOTICE: "I failed, here". QUERY: "I am blocked in this call; is it yours too?" LOST: "That rank's process is gone."
// GOODBYE: "I closed." Whoever fails on a notice sends one of its own, and whoever first hears of a lost rank passes
// that on: so both reach ranks that have no lane with the first.
enum class ControlKind : uint8_t { notice = 1, query = 2, lost = 3, goodbye = 4 };

struct ControlMessage {
  ControlKind kind = ControlKind::notice;
  ErrorKind error = ErrorKind::none;
  uint32_t rank = 0;
  uint64_t sequence = 0;
  Call call;
  // Elements that the sender sends to, and expects from, the receiver of this message. Equal to call.count but in
  // uneven pairwise collectives.
  uint64_t sends = 0, expects = 0;
  uint32_t subject = UINT32_MAX;  // the rank that a peer_lost or timeout notice is about, or that is lost
  uint32_t origin = UINT32_MAX;   // of a notice: who failed first, if not `rank`
  // Of a notice about a send or a receive that met one that does not fit: the receiver's `call`, and what it met.
  Call other;

  void encode(uint8_t out[kControlBytes]) const;
  // False when a field is out of its range.
  bool decode(const uint8_t in[kControlBytes]);
};

// One rank's control link with one peer.
class ControlLink {
 public:
  ControlLink(std::unique_ptr<LaneWriter> writer, std::unique_ptr<LaneReader> reader, Stream tx, Stream rx,
              Memory* memory);

  // False when the lane has no room: control is a courtesy, never a condition.
  bool send(const ControlMessage& message);

  enum class Received : uint8_t { nothing, message, forged };
  Received receive(ControlMessage& message);
  void erase() noexcept;

 private:
  std::unique_ptr<LaneWriter> writer_;
  std::unique_ptr<LaneReader> reader_;
  Stream tx_, rx_;
  Memory* memory_;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace securecoll
