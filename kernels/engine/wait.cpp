#include "engine/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

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

constexpr uint32_t kSpins = 400, kSpinsCrowded = 20;
constexpr uint32_t kYields = 2000, kYieldsCrowded = 40;

}  // namespace

void ring(const Bell* bell) noexcept {
  if (bell->sleepers.load(std::memory_order_relaxed)) futex(&bell->sleepers, FUTEX_WAKE, INT_MAX, nullptr);
}

void sleep_on(std::atomic<uint32_t>* word, uint32_t value, int64_t at_most_ns) {
  if (at_most_ns <= 0) return;
  const timespec t{static_cast<time_t>(at_most_ns / 1'000'000'000), static_cast<long>(at_most_ns % 1'000'000'000)};
  futex(word, FUTEX_WAIT, value, &t);
}

void wake_all(std::atomic<uint32_t>* word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

bool Backoff::pause() {
  const uint32_t spins = crowded_ ? kSpinsCrowded : kSpins;
  const uint32_t yields = crowded_ ? kYieldsCrowded : kYields;
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
  bell_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Backoff::cancel() { bell_->sleepers.fetch_sub(1, std::memory_order_relaxed); }

void Backoff::sleep(int64_t at_most_ns) {
  const uint32_t value = bell_->sleepers.load(std::memory_order_relaxed);
  if (value) sleep_on(&bell_->sleepers, value, at_most_ns < kRecheckNs ? at_most_ns : kRecheckNs);
  bell_->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace securecoll
