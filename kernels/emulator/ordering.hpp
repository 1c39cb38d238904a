// What orders memory, told to ThreadSanitizer, which sees neither fibers nor fences.
#pragma once

#if defined(SC_EMULATOR_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace securecoll::emulator {

// What was done before a release to a place is ordered before what is done after an acquire from it. A place is an
// address and nothing more.
inline void release_to([[maybe_unused]] void* place) {
#if defined(SC_EMULATOR_TSAN)
  __tsan_release(place);
#endif
}

inline void acquire_from([[maybe_unused]] void* place) {
#if defined(SC_EMULATOR_TSAN)
  __tsan_acquire(place);
#endif
}

// Fences, in the way of PTX, where __threadfence() is fence.sc: a fence is ordered before a later one, by whatever
// thread, if an atomic that was written after the one was read before the other. What happens to come in that order in
// this run is not enough. `Readings` are the atomics that the threads of one block have read, `Fences` the fences of
// one thread.
#if defined(SC_EMULATOR_TSAN)
class Readings {
 public:
  void clear() { count_ = 0; }
  void add(void* at) {
    for (unsigned i = 0; i < count_; i++) {
      if (places_[i] == at) return;
    }
    if (count_ < kMost) places_[count_++] = at;
  }
  void acquire() {
    for (unsigned i = 0; i < count_; i++) __tsan_acquire(places_[i]);
  }

 private:
  static constexpr unsigned kMost = 64;  // a block of ours reads a few; fences for more would not be seen
  void* places_[kMost] = {};
  unsigned count_ = 0;
};

class Fences {
 public:
  ~Fences() {
    if (carrier_ != nullptr) __tsan_destroy_fiber(carrier_);
  }
  void on_fence(Readings& readings) {
    readings.acquire();
    __tsan_release(&place_);
    if (carrier_ == nullptr) carrier_ = __tsan_create_fiber(0);
  }
  void on_atomic(void* at, Readings& readings) {
    readings.add(at);
    if (carrier_ == nullptr) return;
    // Only what precedes the fence is released, not what this thread did since: so by one that knows nothing more.
    void* const self = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(carrier_, __tsan_switch_to_fiber_no_sync);
    __tsan_acquire(&place_);
    __tsan_release(at);
    __tsan_switch_to_fiber(self, __tsan_switch_to_fiber_no_sync);
  }

 private:
  char place_ = 0;
  void* carrier_ = nullptr;
};
#else
class Readings {
 public:
  void clear() {}
};
class Fences {
 public:
  void on_fence(Readings&) {}
  void on_atomic(void*, Readings&) {}
};
#endif

}  // namespace securecoll::emulator
