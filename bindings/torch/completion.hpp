// The thread that completes asynchronous works of one communicator.
//
// The engine reports an operation from whichever of its threads finished it, and that thread must not block. Futures
// run callbacks, callbacks may wait for the GIL or issue collectives: so they run here. One thread per communicator,
// since callbacks that issue collectives on two communicators could otherwise wait for each other across ranks.
//
// A callback may also start a collective and wait for its future (PowerSGD's hook does). A completion thread sets
// futures, and it is busy with that very callback: so what a callback starts does not come here, see Backend::go.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

namespace securecoll::binding {

class Work;

class Completions {
 public:
  Completions();
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Whether the calling thread completes works, of any communicator: then it is in a callback.
  static bool in_callback() noexcept;

  // Before an asynchronous operation is submitted; starts the thread on first use.
  void expect();
  // The operation was refused: nothing will come.
  void cancel() noexcept;
  // The operation is final. Takes over one reference to the work. Does not block; any thread.
  void push(Work* work) noexcept;
  // Waits until nothing is expected and all that came is completed. False when `limit` passed first. Not for the
  // thread itself, which returns true at once.
  bool wait_idle(std::chrono::milliseconds limit);
  // Completes what came, then ends the thread. What comes later is leaked: nobody is left to complete it.
  void stop();
  // In a forked child: forgets the thread, which did not survive, and a lock that may be held for ever.
  void abandon() noexcept;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace securecoll::binding
