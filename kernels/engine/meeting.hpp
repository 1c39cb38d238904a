// Meeting: members find each other's sockets, and strangers find nothing.
//
// Every rank listens, and of two ranks the higher one connects. Before anything else is read or sent, both prove that
// they hold the key of this pair and direction, over fresh nonces of both:
//
//   acceptor -> connector   c[32]
//   connector -> acceptor   m = u32 s | u32 d | u16 channel | n[32], then HMAC(conn, "c" || c || m)
//   acceptor -> connector   HMAC(conn, "a" || c || m)
//
// Anyone may connect. An unproven socket costs a descriptor and some bytes for at most five seconds, there are never
// more of them than a fixed number, and the oldest makes room for the next. So a member gets in whatever strangers do,
// as long as it tries again, which it does. What fails closes one socket and nothing else.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/address.hpp"
#include "engine/arena.hpp"
#include "engine/descriptor.hpp"

namespace securecoll {

class Meeting {
 public:
  // Listens on these addresses, each on a port that the kernel picks. One where it cannot listen is left out.
  Meeting(uint32_t rank, const std::vector<Address>& addresses);

  // Where it listens.
  const std::vector<Address>& addresses() const { return addresses_; }

  // A rank to meet: where it listens, and the roots "conn" of the two directions. Throws EngineError: handshake, when
  // the two have no family of addresses in common.
  void expect(uint32_t peer, std::vector<Address> addresses, Secret tx, Secret rx);

  // Makes progress until everyone was met or `until` (ns, monotonic) has passed. Whether everyone was.
  bool progress(int64_t until);
  std::vector<uint32_t> missing() const;
  // Why, as far as it is known.
  std::string why_missing(uint32_t peer) const;
  // The proven socket of a rank that was met.
  Descriptor take(uint32_t peer);

  // Connections from elsewhere that proved nothing, and what is to be said of the last.
  uint64_t strangers() const { return strangers_; }
  const std::string& last_stranger() const { return last_stranger_; }

 private:
  static constexpr size_t kChallengeBytes = 32, kMacBytes = 32;
  static constexpr size_t kMessageBytes = 4 + 4 + 2 + 32;
  static constexpr size_t kAnswerBytes = kMessageBytes + kMacBytes;

  // Accepted, and not proven.
  struct Pending {
    Descriptor socket;
    int64_t deadline;
    Address from;
    uint8_t challenge[kChallengeBytes];
    uint8_t answer[kAnswerBytes];
    size_t have = 0;
  };
  struct Peer {
    uint32_t rank;
    std::vector<Address> addresses;
    Secret tx, rx;
    Descriptor met;
    // Connecting.
    enum class Stage : uint8_t { idle, connecting, challenged, answered } stage = Stage::idle;
    Descriptor socket;
    int64_t at = 0;  // when to try again, or to give this attempt up
    size_t attempts = 0, have = 0;
    uint8_t in[kChallengeBytes];
    uint8_t proof[kMacBytes];  // expected
    std::string trouble;
  };
  enum class Step : uint8_t { waits, done, failed };

  void accept_all(const Descriptor& listener);
  Step look(Pending& pending);
  Step step(Peer& peer);
  bool connect(Peer& peer);
  void retry(Peer& peer, const std::string& trouble);
  void refuse(const Pending& pending, const char* why);
  Peer* find(uint32_t rank);

  const uint32_t rank_;
  std::vector<Address> addresses_;
  std::string left_out_;
  std::vector<Descriptor> listeners_;
  std::vector<Pending> pending_;  // oldest first
  std::vector<Peer> peers_;
  uint64_t strangers_ = 0;
  std::string last_stranger_;
};

}  // namespace securecoll
