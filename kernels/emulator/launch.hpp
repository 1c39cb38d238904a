// Runs a kernel's grid: one host thread for each block that is resident at a time.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/device_memory.hpp"
#include "emulator/seam.hpp"

namespace securecoll::emulator {

// In which order the threads of a block, and the blocks of a grid, get their turns.
enum class Order : uint8_t { in_turn, reversed, random };

inline constexpr unsigned kMaxThreads = 1024;
inline constexpr size_t kMaxSharedBytes = 227 << 10;  // what a block may ask for on sm_90

struct LaunchRequest {
  const Kernel* kernel;
  const void* args;  // kernel->args_bytes, which the caller keeps until the end
  unsigned blocks, threads;
  size_t shared_bytes;
  Order order = Order::in_turn;
  uint64_t seed = 0;
  unsigned resident = 1;  // blocks at a time
  double patience = 10;   // seconds that a launch may go without progress while its threads poll
};

// Null: no kernel of that name.
const Kernel* find_kernel(const char* name);
// Why a GPU would refuse the launch, or empty.
std::string refusal(const LaunchRequest& request);
// Empty, or what went wrong first: "sc_seal, block 3, thread 17: ...".
std::string run(const LaunchRequest& request, DeviceMemory& memory);

// What the blocks of one launch share.
class Launch {
 public:
  Launch(const LaunchRequest& request, const DeviceMemory& memory);

  const LaunchRequest request;
  const DeviceMemory& memory;
  char end_place = 0;  // see ordering.hpp: to it, what each thread of the grid did

  // The next block to run, or `blocks` when there is none.
  unsigned next_block();
  void fail(std::string why);
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  const std::string& why() const { return why_; }
  // Counted whenever a thread gets somewhere, so that waiting in vain can be told from waiting.
  void progress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t progress_count() const { return progress_.load(std::memory_order_relaxed); }

 private:
  std::vector<unsigned> block_order_;
  std::atomic<unsigned> started_{0};
  std::atomic<uint64_t> progress_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string why_;
};

}  // namespace securecoll::emulator
