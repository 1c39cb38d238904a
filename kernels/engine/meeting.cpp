#include "engine/meeting.hpp"

#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/clock.hpp"
#include "engine/error.hpp"
#include "engine/kdf.hpp"
#include "engine/random.hpp"
#include "engine/wire.hpp"

namespace securecoll {
namespace {

constexpr int64_t kProofLimit = 5000 * kMillisecond;
constexpr int64_t kConnectLimit = 1000 * kMillisecond;
constexpr int64_t kRetryAfter = 20 * kMillisecond;
constexpr size_t kUnprovenAtOnce = 64;  // beside one for each member that is to come
constexpr size_t kAcceptedAtOnce = 64;
constexpr int kQueue = 512;
constexpr int64_t kLookAgain = 10 * kMillisecond;

// HMAC(conn, label || c || m)
void prove(const Secret& conn, char label, const uint8_t* challenge, size_t challenge_bytes, const uint8_t* message,
           size_t message_bytes, uint8_t out[32]) {
  std::vector<uint8_t> text;
  text.reserve(1 + challenge_bytes + message_bytes);
  text.push_back(static_cast<uint8_t>(label));
  text.insert(text.end(), challenge, challenge + challenge_bytes);
  text.insert(text.end(), message, message + message_bytes);
  hmac_sha256(conn, text.data(), text.size(), out);
}

void set(int socket, int level, int option, int value) { setsockopt(socket, level, option, &value, sizeof value); }

// A link's socket: nothing is held back to be sent with more, what is lost is sent again soon and often while little
// is under way, and a host that went away is asked whether it is there.
void settle(int socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 9);  // Link::alive() is sooner
}

bool send_all(int socket, const uint8_t* data, size_t bytes) {
  // Into the empty buffer of a new connection: all of it or nothing.
  return send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes);
}

std::string listed(const std::vector<Address>& addresses) {
  std::string text;
  for (const Address& a : addresses) text += (text.empty() ? "" : " and ") + a.text();
  return text.empty() ? "nothing" : text;
}

std::string reason() { return std::strerror(errno); }

}  // namespace

Meeting::Meeting(uint32_t rank, const std::vector<Address>& addresses) : rank_(rank) {
  for (Address a : addresses) {
    Descriptor listener(socket(a.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (listener && a.family() == AF_INET6) set(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
    socklen_t bytes = sizeof a.storage;
    if (!listener || bind(listener.get(), a.get(), a.bytes()) != 0 || listen(listener.get(), kQueue) != 0 ||
        getsockname(listener.get(), a.get(), &bytes) != 0) {
      left_out_ += " (it cannot on " + a.text() + ": " + reason() + ")";
      continue;
    }
    addresses_.push_back(a);
    listeners_.push_back(std::move(listener));
  }
}

void Meeting::expect(uint32_t peer, std::vector<Address> addresses, Secret tx, Secret rx) {
  Peer p;
  p.rank = peer;
  // Families that this host has no way to are not tried.
  for (const Address& a : addresses)
    if (std::any_of(addresses_.begin(), addresses_.end(), [&](const Address& o) { return o.family() == a.family(); }))
      p.addresses.push_back(a);
  if (p.addresses.empty())
    throw EngineError(ErrorKind::handshake,
                      "rank " + std::to_string(rank_) + " listens on " + listed(addresses_) + left_out_ + ", rank " +
                          std::to_string(peer) + " on " + listed(addresses) +
                          ": they share no memory, and no family of addresses; SECURECOLL_IFNAME names the interface");
  p.tx = std::move(tx);
  p.rx = std::move(rx);
  peers_.push_back(std::move(p));
}

Meeting::Peer* Meeting::find(uint32_t rank) {
  for (Peer& p : peers_)
    if (p.rank == rank) return &p;
  return nullptr;
}

void Meeting::want(uint32_t peer, int64_t patience) {
  Peer* p = find(peer);
  if (!p || p->wanted || p->met) return;
  p->wanted = true;
  p->at = now_ns() + (peer > rank_ ? patience : 0);
}

std::vector<uint32_t> Meeting::missing() const {
  std::vector<uint32_t> ranks;
  for (const Peer& p : peers_)
    if (p.wanted && !p.met) ranks.push_back(p.rank);
  return ranks;
}

std::string Meeting::why_missing(uint32_t peer) const {
  const Peer* p = find(peer);
  if (p && !p->trouble.empty()) return p->trouble;
  return p && p->attempts ? "it has not answered" : "it has not connected";
}

bool Meeting::alive(uint32_t peer) const {
  const Peer* p = find(peer);
  return !p || p->refused < p->addresses.size();
}

bool Meeting::busy() const {
  return !pending_.empty() ||
         std::any_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.wanted && !p.met; });
}

std::vector<std::pair<uint32_t, Descriptor>> Meeting::take() {
  std::vector<std::pair<uint32_t, Descriptor>> met;
  for (Peer& p : peers_)
    if (p.met) met.emplace_back(p.rank, std::move(p.met));
  const auto taken = [&](const Peer& p) {
    return std::any_of(met.begin(), met.end(), [&](const auto& m) { return m.first == p.rank; });
  };
  peers_.erase(std::remove_if(peers_.begin(), peers_.end(), taken), peers_.end());
  return met;
}

bool Meeting::progress(int64_t until) {
  for (;;) {
    for (const Descriptor& listener : listeners_) accept_all(listener);
    const int64_t now = now_ns();
    for (size_t i = 0; i < pending_.size();) {
      Step step = look(pending_[i]);
      if (step == Step::waits && now >= pending_[i].deadline) {
        refuse(pending_[i], "proved nothing in time");
        step = Step::failed;
      }
      if (step == Step::waits)
        i++;
      else
        pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    }
    for (Peer& peer : peers_)
      if (peer.wanted && !peer.met) step(peer);
    if (missing().empty()) return true;
    if (now >= until) return false;

    std::vector<pollfd> wait;
    for (const Descriptor& listener : listeners_) wait.push_back({listener.get(), POLLIN, 0});
    for (const Pending& p : pending_) wait.push_back({p.socket.get(), POLLIN, 0});
    for (const Peer& p : peers_)
      if (p.socket) wait.push_back({p.socket.get(), short(p.stage == Peer::Stage::connecting ? POLLOUT : POLLIN), 0});
    poll(wait.data(), wait.size(), static_cast<int>(std::min(kLookAgain, until - now) / kMillisecond) + 1);
  }
}

void Meeting::accept_all(const Descriptor& listener) {
  for (size_t i = 0; i < kAcceptedAtOnce; i++) {
    Pending p;
    socklen_t bytes = sizeof p.from.storage;
    p.socket = Descriptor(accept4(listener.get(), p.from.get(), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!p.socket) {
      if ((errno == EMFILE || errno == ENFILE) && !pending_.empty()) {
        refuse(pending_.front(), "made room for the next");
        pending_.erase(pending_.begin());
        continue;
      }
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    if (pending_.size() >= kUnprovenAtOnce + peers_.size()) {
      refuse(pending_.front(), "made room for the next");
      pending_.erase(pending_.begin());
    }
    p.deadline = now_ns() + kProofLimit;
    fill_random(p.challenge, sizeof p.challenge);
    if (send_all(p.socket.get(), p.challenge, sizeof p.challenge))
      pending_.push_back(std::move(p));
    else
      refuse(p, "went away");
  }
}

Meeting::Step Meeting::look(Pending& p) {
  const ssize_t n = recv(p.socket.get(), p.answer + p.have, sizeof p.answer - p.have, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Step::waits;
  if (n <= 0) {
    refuse(p, "went away");
    return Step::failed;
  }
  p.have += static_cast<size_t>(n);
  if (p.have < sizeof p.answer) return Step::waits;
  Peer* peer = find(load_be32(p.answer));
  uint8_t expected[kMacBytes];
  if (!peer || load_be32(p.answer + 4) != rank_ || load_be16(p.answer + 8) != 0) {
    refuse(p, "is none of this group's members");
    return Step::failed;
  }
  prove(peer->rx, 'c', p.challenge, sizeof p.challenge, p.answer, kMessageBytes, expected);
  if (!equal_constant_time(expected, p.answer + kMessageBytes, kMacBytes)) {
    refuse(p, "gave a wrong proof");
    return Step::failed;
  }
  // It may have taken this rank's socket already; a lower one that is not let in tries again, or finds that it did.
  if (peer->rank < rank_ && (peer->met || peer->stage == Peer::Stage::answered)) return Step::failed;
  prove(peer->rx, 'a', p.challenge, sizeof p.challenge, p.answer, kMessageBytes, expected);
  if (!send_all(p.socket.get(), expected, sizeof expected)) {
    refuse(p, "went away");
    return Step::failed;
  }
  settle(p.socket.get());
  peer->met = std::move(p.socket);  // a second one: the member did not see the first one's answer
  peer->socket.reset();
  return Step::done;
}

bool Meeting::connect(Peer& peer) {
  const Address& to = peer.addresses[peer.attempts++ % peer.addresses.size()];
  peer.socket = Descriptor(socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!peer.socket) return false;
  // From the address that this rank announced: so nothing leaves by an interface that was not chosen.
  for (Address from : addresses_) {
    if (from.family() != to.family()) continue;
    (from.family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(from.storage).sin6_port
                               : reinterpret_cast<sockaddr_in&>(from.storage).sin_port) = 0;
    if (bind(peer.socket.get(), from.get(), from.bytes()) != 0) return false;
  }
  return ::connect(peer.socket.get(), to.get(), to.bytes()) == 0 || errno == EINPROGRESS;
}

void Meeting::retry(Peer& peer, const std::string& trouble, bool nobody_there) {
  peer.trouble = trouble;
  peer.socket.reset();
  peer.stage = Peer::Stage::idle;
  peer.at = now_ns() + kRetryAfter;
  peer.refused = nobody_there ? peer.refused + 1 : 0;
}

Meeting::Step Meeting::step(Peer& peer) {
  const int64_t now = now_ns();
  const auto where = [&] { return peer.addresses[(peer.attempts - 1) % peer.addresses.size()].text(); };
  if (peer.stage == Peer::Stage::idle) {
    if (now < peer.at) return Step::waits;
    if (!connect(peer)) {
      retry(peer, "connecting to " + where() + " failed: " + reason(), errno == ECONNREFUSED);
      return Step::failed;
    }
    peer.stage = Peer::Stage::connecting;
    peer.at = now + kConnectLimit;
    peer.have = 0;
  }
  if (now >= peer.at) {
    retry(peer, peer.stage == Peer::Stage::connecting ? where() + " does not answer" : where() + " proves nothing");
    return Step::failed;
  }
  if (peer.stage == Peer::Stage::connecting) {
    pollfd ready{peer.socket.get(), POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) return Step::waits;
    int failed = 0;
    socklen_t bytes = sizeof failed;
    getsockopt(peer.socket.get(), SOL_SOCKET, SO_ERROR, &failed, &bytes);
    if (failed) {
      retry(peer, "connecting to " + where() + " failed: " + std::strerror(failed), failed == ECONNREFUSED);
      return Step::failed;
    }
    peer.stage = Peer::Stage::challenged;
    peer.at = now + kProofLimit;
  }
  const ssize_t n = recv(peer.socket.get(), peer.in + peer.have, sizeof peer.in - peer.have, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Step::waits;
  if (n <= 0) {
    retry(peer, where() + " closed the connection");
    return Step::failed;
  }
  peer.have += static_cast<size_t>(n);
  if (peer.have < sizeof peer.in) return Step::waits;
  peer.have = 0;
  if (peer.stage == Peer::Stage::challenged) {
    uint8_t answer[kAnswerBytes];
    store_be32(answer, rank_);
    store_be32(answer + 4, peer.rank);
    store_be16(answer + 8, 0);
    fill_random(answer + 10, 32);
    prove(peer.tx, 'c', peer.in, sizeof peer.in, answer, kMessageBytes, answer + kMessageBytes);
    prove(peer.tx, 'a', peer.in, sizeof peer.in, answer, kMessageBytes, peer.proof);
    if (!send_all(peer.socket.get(), answer, sizeof answer)) {
      retry(peer, where() + " closed the connection");
      return Step::failed;
    }
    peer.stage = Peer::Stage::answered;
    return Step::waits;
  }
  if (!equal_constant_time(peer.in, peer.proof, kMacBytes)) {
    retry(peer, "whoever answers at " + where() + " does not prove to be it");
    return Step::failed;
  }
  settle(peer.socket.get());
  peer.met = std::move(peer.socket);
  return Step::done;
}

void Meeting::refuse(const Pending& pending, const char* why) {
  strangers_++;
  last_stranger_ = pending.from.text() + ' ' + why;
}

}  // namespace securecoll
