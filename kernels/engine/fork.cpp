#include "engine/fork.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace securecoll {
namespace {

// Leaked on purpose: a child or a late thread may still look at it while statics are being destroyed.
struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
  std::vector<void (*)()> resets;
};

std::atomic<uint64_t> generation{1};

Registry& registry() {
  static Registry* r = [] {
    auto* made = new Registry;
    // The lock is held across fork, so the child sees whole vectors.
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     auto& r = registry();
                     generation.fetch_add(1);
                     for (int fd : r.descriptors) ::close(fd);
                     r.descriptors.clear();
                     for (auto* reset : r.resets) reset();
                     r.mutex.unlock();
                   });
    return made;
  }();
  return *r;
}

}  // namespace

uint64_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

void close_in_children(int fd) {
  auto& r = registry();
  std::lock_guard lock(r.mutex);
  r.descriptors.push_back(fd);
}

void forget_in_children(int fd) noexcept {
  auto& r = registry();
  std::lock_guard lock(r.mutex);
  r.descriptors.erase(std::remove(r.descriptors.begin(), r.descriptors.end(), fd), r.descriptors.end());
}

void call_in_children(void (*reset)()) {
  auto& r = registry();
  std::lock_guard lock(r.mutex);
  r.resets.push_back(reset);
}

}  // namespace securecoll
