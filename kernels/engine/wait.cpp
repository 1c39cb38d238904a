#include "engine/wait.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "engine/clock.hpp"
#include "engine/lane.hpp"

namespace securecoll {
namespace {

// Without FUTEX_PRIVATE_FLAG: the word may be mapped by another process, read-only.
long futex(const void* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

timespec timespec_of(int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

constexpr int64_t kShortestNs = 50'000;
constexpr uint32_t kSpins = 400, kSpinsCrowded = 20;
constexpr uint32_t kYields = 2000, kYieldsCrowded = 40, kYieldsSockets = 8;

}  // namespace

void ring(const Bell* bell) noexcept {
  if (bell->sleepers.load(std::memory_order_relaxed)) futex(&bell->sleepers, FUTEX_WAKE, INT_MAX, nullptr);
}

void sleep_on(std::atomic<uint32_t>* word, uint32_t value, int64_t at_most_ns) {
  if (at_most_ns <= 0) return;
  const timespec t = timespec_of(at_most_ns);
  futex(word, FUTEX_WAIT, value, &t);
}

void wake_all(std::atomic<uint32_t>* word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

void sleep_briefly() {
  const timespec t = timespec_of(kRecheckNs / 10);
  nanosleep(&t, nullptr);
}

bool Backoff::pause() {
  const uint32_t spins = crowded_ ? kSpinsCrowded : kSpins;
  // Who sleeps on a socket is woken by the kernel as soon as there is something, and runs before those that never
  // slept; who yields waits for a turn.
  const uint32_t yields = alarm_.sockets >= 0 ? kYieldsSockets : crowded_ ? kYieldsCrowded : kYields;
  turns_++;
  if (turns_ <= spins) {
    for (int i = 0; i < 4; i++) relax();
    return false;
  }
  if (turns_ <= spins + yields) {
    sched_yield();
    return false;
  }
  return true;
}

void Backoff::prepare() {
  if (alarm_.sockets >= 0) return;
  alarm_.bell->sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Backoff::cancel() {
  if (alarm_.sockets < 0) alarm_.bell->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Backoff::doze(int64_t at_most_ns) {
  if (alarm_.both) slept_at_ = now_ns() - kRecheckNs / 2;
  sleep(at_most_ns);
}

void Backoff::sleep(int64_t at_most_ns) {
  at_most_ns = std::min(at_most_ns, kRecheckNs);
  if (alarm_.sockets >= 0) {
    if (alarm_.both) {
      const int64_t now = now_ns();
      if (!slept_at_) slept_at_ = now;
      at_most_ns = std::min(at_most_ns, std::max(kShortestNs, (now - slept_at_) / 4));
    }
    if (at_most_ns <= 0) return;
    pollfd news{alarm_.sockets, POLLIN, 0};
    const timespec t = timespec_of(at_most_ns);
    ppoll(&news, 1, &t, nullptr);
    return;
  }
  const uint32_t value = alarm_.bell->sleepers.load(std::memory_order_relaxed);
  if (value) sleep_on(&alarm_.bell->sleepers, value, at_most_ns);
  alarm_.bell->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace securecoll
