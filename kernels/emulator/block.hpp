// A block of CUDA threads, each on a fiber, on one host thread.
//
// Threads take turns only where CUDA lets them wait for each other: at barriers, warp operations, and polls. What they
// do in between, they do alone; so a kernel that relies on lockstep, or on luck, fails in one of the orders.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/fiber.hpp"
#include "emulator/launch.hpp"
#include "emulator/ordering.hpp"
#include "emulator/race_checker.hpp"
#include "emulator/random.hpp"

namespace securecoll::emulator {

class Block {
 public:
  Block();
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Runs block `number` of the launch to its end, or to the first failure of any block.
  void run(Launch& launch, unsigned number);

 private:
  enum class State : uint8_t { ready, at_barrier, in_warp_operation, exited };
  enum class Operation : uint8_t { barrier, shuffle, ballot, binary_mma };

  struct Thread : ThreadView {
    explicit Thread(Block* block, unsigned number) : block_of(block), number(number), fiber(number) {}
    Block* const block_of;
    const unsigned number;
    Fiber fiber;
    Fences fences;
    State state = State::exited;
    Site site{};
    // The warp operation that the thread takes part in, and its result.
    Operation operation{};
    uint32_t mask = 0;
    uint32_t source = 0;
    uint64_t value = 0;
    uint32_t a[4]{}, b[2]{};
    int product[4]{};
  };

  // The numbers of the threads that can run.
  class ReadySet {
   public:
    void clear();
    void add(unsigned number);
    void remove(unsigned number);
    bool empty() const { return count_ == 0; }
    unsigned count() const { return count_; }
    // The first at or after `number`, or at or before it, going round. Not empty.
    unsigned next(unsigned number) const;
    unsigned previous(unsigned number) const;

   private:
    uint64_t words_[kMaxThreads / 64] = {};
    unsigned count_ = 0;
  };

  struct Warp {
    uint32_t waiting = 0;  // lanes in a warp operation
    uint32_t exited = 0;
  };

  // The seam that kernels call; see seam.hpp.
  friend uint8_t* shared_memory(size_t bytes, size_t alignment);
  friend uint32_t shared_offset(const void* at);
  friend void check_alignment(const void* at, size_t bytes);
  friend void before_atomic(const void* at, size_t bytes);
  friend void before_poll(const void* at, size_t bytes);
  friend void threadfence();
  friend void trap();
  friend void block_barrier(Site site);
  friend void warp_barrier(uint32_t mask, Site site);
  friend uint32_t warp_ballot(uint32_t mask, bool vote, Site site);
  friend uint64_t warp_shuffle(uint32_t mask, uint64_t value, uint32_t source, Site site);
  friend void binary_mma(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
  friend void on_access(uintptr_t at, size_t bytes, bool write, const void* code);

  static Thread& running() { return *static_cast<Thread*>(current); }
  static void thread_main();

  void start(Launch& launch, unsigned number);
  unsigned pick();
  [[noreturn]] void fail(const std::string& what);
  void wait(State state);
  void step_aside();
  void wake(Thread& thread);
  void poll(const void* at);
  void leave_barrier();
  void check_memory(uintptr_t at, size_t bytes, bool write, const void* code);
  void check_shared(size_t offset, size_t bytes, bool write, const void* code);
  void operate(Operation operation, uint32_t mask, Site site);
  void complete(Thread& last);
  void multiply(unsigned first);
  std::string waiting() const;
  std::string where(const void* code) const;

  Launch* launch_ = nullptr;
  unsigned number_ = 0;
  std::vector<std::unique_ptr<Thread>> threads_;  // as many as any launch had
  unsigned size_ = 0;                             // of them, those of this launch
  unsigned live_ = 0;
  unsigned at_barrier_ = 0;
  Thread* first_at_barrier_ = nullptr;
  unsigned phase_ = 0;         // counts barriers
  char phase_places_[2] = {};  // see ordering.hpp
  char start_place_ = 0;
  Readings readings_;
  std::vector<Warp> warps_;
  ReadySet ready_;
  unsigned position_ = 0;
  Random random_{0};
  uint8_t* window_whole_;
  uint8_t* window_;
  RaceChecker races_;
  uint64_t polls_ = 0;
  uint64_t progress_seen_ = 0;
  std::chrono::steady_clock::time_point progress_at_;
};

// The instrumented kernels of a checked build report every access here.
void on_access(uintptr_t at, size_t bytes, bool write, const void* code);

}  // namespace securecoll::emulator
