// A stack of its own to run on, and the switch to it and back: how one host thread plays all threads of a block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__) && !defined(SC_EMULATOR_UCONTEXT)
#define SC_EMULATOR_UCONTEXT 1  // the hand-written switch is for x86-64; the standard library's is for everywhere
#endif

#if defined(SC_EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

namespace securecoll::emulator {

class Fiber {
 public:
  using Entry = void (*)();

  // `number` tells the fibers of a block apart.
  explicit Fiber(unsigned number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls `entry`, which must end in finish(). What the fiber was doing before is forgotten; no
  // destructor runs.
  void prepare(Entry entry);
  // Runs the fiber until it pauses or finishes. Called by whoever schedules.
  void resume();
  // Called on the fiber: back to the one who resumed it.
  void pause() { leave(false); }
  // The same, for the last time.
  [[noreturn]] void finish();

  bool owns(uintptr_t at, size_t bytes) const { return at - low_ < size_ && bytes <= low_ + size_ - at; }

 private:
  void leave(bool for_good);
  void entered();
  static void start();

  uintptr_t low_;  // of the stack
  size_t size_;
  uintptr_t top_;
  Entry entry_ = nullptr;
#if defined(SC_EMULATOR_UCONTEXT)
  ucontext_t own_, resumer_;
#else
  void* own_ = nullptr;  // stack pointers of those that do not run
  void* resumer_ = nullptr;
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(SC_EMULATOR_TSAN)
  // What the sanitizers are told, so that they know whose stack is in use.
  void* own_state_ = nullptr;
  void* resumer_state_ = nullptr;
  const void* resumer_low_ = nullptr;
  size_t resumer_size_ = 0;
#endif
};

}  // namespace securecoll::emulator
