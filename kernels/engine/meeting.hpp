// Meeting: members find each other's sockets, and strangers find nothing.
//
// Every rank listens, and connects to those that it wants. Before anything else is read or sent, both prove that they
// hold the key of this pair and direction, over fresh nonces of both:
//
//   acceptor -> connector   c[32]
//   connector -> acceptor   m = u32 s | u32 d | u16 channel | n[32], then HMAC(conn, "c" || c || m)
//   acceptor -> connector   HMAC(conn, "a" || c || m)
//
// Two ranks that want each other would often cross and make two sockets. So the lower one of a pair lets the higher
// one come first; and where they cross all the same, the higher one's socket stays: it lets the lower one in only as
// long as it has not proven itself to it, and the lower one takes the first that is proven.
//
// Anyone may connect. An unproven socket costs a descriptor and some bytes for at most five seconds, there are never
// more of them than a fixed number, and the oldest makes room for the next. So a member gets in whatever strangers do,
// as long as it tries again, which it does. What fails closes one socket and nothing else.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
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

  // A rank that may be met: where it listens, and the roots "conn" of the two directions. Throws EngineError:
  // handshake, when the two have no family of addresses in common.
  void expect(uint32_t peer, std::vector<Address> addresses, Secret tx, Secret rx);
  // Connects to it, from now on; `patience` (ns) later when it is a higher rank, which comes by itself if it wants
  // this one. Idempotent; nothing where it was met.
  void want(uint32_t peer, int64_t patience);

  // Makes progress until all that are wanted were met or `until` (ns, monotonic) has passed. Whether they were.
  bool progress(int64_t until);
  // Those that are wanted and not met.
  std::vector<uint32_t> missing() const;
  // Why, as far as it is known.
  std::string why_missing(uint32_t peer) const;
  // False once nobody listens any more at any address of a rank that is wanted.
  bool alive(uint32_t peer) const;
  // The proven sockets since the last call, by rank. Their keys are erased here.
  std::vector<std::pair<uint32_t, Descriptor>> take();
  // Whether all that are expected were met.
  bool over() const { return peers_.empty(); }
  // Whether somebody is connecting or being connected to, so that there is soon something to do.
  bool busy() const;

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
    bool wanted = false;
    // Connecting.
    enum class Stage : uint8_t { idle, connecting, challenged, answered } stage = Stage::idle;
    Descriptor socket;
    int64_t at = 0;  // when to try again, or to give this attempt up
    size_t attempts = 0, have = 0;
    size_t refused = 0;  // attempts in a row
    uint8_t in[kChallengeBytes];
    uint8_t proof[kMacBytes];  // expected
    std::string trouble;
  };
  enum class Step : uint8_t { waits, done, failed };

  void accept_all(const Descriptor& listener);
  Step look(Pending& pending);
  Step step(Peer& peer);
  bool connect(Peer& peer);
  void retry(Peer& peer, const std::string& trouble, bool nobody_there = false);
  void refuse(const Pending& pending, const char* why);
  Peer* find(uint32_t rank);
  const Peer* find(uint32_t rank) const { return const_cast<Meeting*>(this)->find(rank); }

  const uint32_t rank_;
  std::vector<Address> addresses_;
  std::string left_out_;
  std::vector<Descriptor> listeners_;
  std::vector<Pending> pending_;  // oldest first
  std::vector<Peer> peers_;       // that were not met and taken
  uint64_t strangers_ = 0;
  std::string last_stranger_;
};

}  // namespace securecoll
