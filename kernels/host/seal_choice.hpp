// Which of its two ways of sealing a process uses for large records.
//
// Stores through the caches are best when the reader's core shares one with this core: the reader finds the record
// there. Where it shares none, every line must first be fetched back from the core that read it last, and stores past
// the caches are several times faster; but a reader that does share a cache then has to go to memory. Which machine
// this is no identification register says inside a VM. So the writer times its own sealing: most records go the way
// that is faster so far, a few the other way.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace securecoll::host {

class SealChoice {
 public:
  static constexpr size_t kLeast = 16 << 10;  // bytes: below, what is timed is mostly the clock

  // For the next record of at least kLeast bytes.
  bool far() {
    const uint32_t n = records_.fetch_add(1, std::memory_order_relaxed);
    const bool preferred = far_.load(std::memory_order_relaxed);
    return n % kPeriod < kTrials ? !preferred : preferred;
  }

  void took(bool far, int64_t ns, size_t bytes) {
    auto& mean = mean_[far];
    const int64_t sample = ns * 65536 / static_cast<int64_t>(bytes);
    const int64_t before = mean.load(std::memory_order_relaxed);
    // A thread that lost its core in between says nothing about the way.
    const int64_t counted = before != 0 && sample > 3 * before ? 3 * before : sample;
    mean.store(before == 0 ? counted : before + (counted - before) / 8, std::memory_order_relaxed);
    const int64_t near_ns = mean_[0].load(std::memory_order_relaxed),
                  far_ns = mean_[1].load(std::memory_order_relaxed);
    if (near_ns == 0 || far_ns == 0) return;
    // The reader's loss, which is not seen here, counts against stores past the caches.
    far_.store(near_ns * 4 > far_ns * 5, std::memory_order_relaxed);
  }

  bool prefers_far() const { return far_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kPeriod = 256, kTrials = 4;

  std::atomic<uint32_t> records_{0};
  std::atomic<bool> far_{false};
  std::atomic<int64_t> mean_[2] = {0, 0};  // ns for 64 KiB, near and far
};

}  // namespace securecoll::host
