// Waiting: a short spin, then yields, then sleep on a bell with a recheck.
//
// A bell is a word in the sleeper's own segment, written by its owner only: the number of threads asleep on it. A peer
// that has news looks at it and, when it is not zero, wakes the sleepers; it needs no write access for that. A wake-up
// that falls between the last look and the sleep is lost, so a sleep is never longer than the recheck interval.
//
// News from another host rings no bell. Where there are sockets, a thread sleeps on them instead; where there are
// peers of both kinds, only as long as a fraction of what it has waited already, since then no bell wakes it.
#pragma once
#include <atomic>
#include <cstdint>

namespace securecoll {

struct alignas(64) Bell {
  std::atomic<uint32_t> sleepers;
};

// What wakes a thread that waits.
struct Alarm {
  Bell* bell;
  int sockets = -1;   // readable (an epoll descriptor) when there is news from a socket; -1: there is none
  bool both = false;  // news comes from sockets and, unheard, from shared memory
};

class Backoff {
 public:
  // `crowded`: more ranks than cores on this host, so spinning only delays the peer that is waited for.
  Backoff(Alarm alarm, bool crowded) : alarm_(alarm), crowded_(crowded) {}

  void reset() { turns_ = 0, slept_at_ = 0; }
  // One wait after a look that found nothing. Returns true when the next one would sleep: the caller then calls
  // prepare(), looks once more, and either calls cancel() or sleep().
  bool pause();
  void prepare();
  void cancel();
  void sleep(int64_t at_most_ns);
  // The same, for one that does not know how long it has waited.
  void doze(int64_t at_most_ns);
  // Worth looking at clocks, control lanes and liveness now?
  bool idle() const { return turns_ > 64; }

 private:
  Alarm alarm_;
  uint32_t turns_ = 0;
  int64_t slept_at_ = 0;  // ns, monotonic: since the last reset, first
  bool crowded_;
};

inline constexpr int64_t kRecheckNs = 2'000'000;

// Sleeps while `*word == value`, at most `at_most_ns`. For words of this process.
void sleep_on(std::atomic<uint32_t>* word, uint32_t value, int64_t at_most_ns);
void wake_all(std::atomic<uint32_t>* word);
// For a loop that waits for something that wakes nobody.
void sleep_briefly();

}  // namespace securecoll
