#include "emulator/launch.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "emulator/block.hpp"
#include "emulator/ordering.hpp"
#include "emulator/text.hpp"

namespace securecoll::emulator {
namespace {

// Filled by static objects, so it must exist before any of them.
std::vector<const Kernel*>& kernels() {
  static std::vector<const Kernel*> all;
  return all;
}

#if defined(SC_EMULATOR_TSAN)
// To ThreadSanitizer the fibers of a block that ran before would be the same threads, and so in order with it.
constexpr bool kBlocksAreReused = false;
#else
constexpr bool kBlocksAreReused = true;
#endif

// Blocks are kept: their stacks and shared memory are expensive to map.
class BlockStore {
 public:
  std::unique_ptr<Block> take() {
    std::lock_guard lock(mutex_);
    if (!kBlocksAreReused || kept_.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> block = std::move(kept_.back());
    kept_.pop_back();
    return block;
  }
  void put_back(std::unique_ptr<Block> block) {
    std::lock_guard lock(mutex_);
    kept_.push_back(std::move(block));
  }
  void end_of_launch() {
    std::lock_guard lock(mutex_);
    if (!kBlocksAreReused) kept_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> kept_;
};

BlockStore& blocks() {
  static BlockStore store;
  return store;
}

void run_blocks(Launch& launch) {
  DeviceMemory::Access access;
  for (;;) {
    const unsigned number = launch.next_block();
    if (number == launch.request.blocks || launch.failed()) break;
    std::unique_ptr<Block> block = blocks().take();
    block->run(launch, number);
    blocks().put_back(std::move(block));
  }
}

}  // namespace

Kernel::Kernel(const char* name, size_t args_bytes, unsigned max_threads, KernelBody body)
    : name(name), args_bytes(args_bytes), max_threads(max_threads), body(body) {
  kernels().push_back(this);
}

const Kernel* find_kernel(const char* name) {
  for (const Kernel* kernel : kernels()) {
    if (std::strcmp(kernel->name, name) == 0) return kernel;
  }
  return nullptr;
}

Launch::Launch(const LaunchRequest& request, const DeviceMemory& memory)
    : request(request), memory(memory), block_order_(request.blocks) {
  std::iota(block_order_.begin(), block_order_.end(), 0u);
  if (request.order == Order::reversed) std::reverse(block_order_.begin(), block_order_.end());
  if (request.order == Order::random) {
    Random random(request.seed);
    for (unsigned i = request.blocks; i > 1; i--) std::swap(block_order_[i - 1], block_order_[random.below(i)]);
  }
}

unsigned Launch::next_block() {
  progress();
  const unsigned turn = started_.fetch_add(1, std::memory_order_relaxed);
  return turn < request.blocks ? block_order_[turn] : request.blocks;
}

void Launch::fail(std::string why) {
  std::lock_guard lock(mutex_);
  if (!failed_.exchange(true)) why_ = std::move(why);
}

std::string refusal(const LaunchRequest& request) {
  const Kernel& kernel = *request.kernel;
  if (request.blocks == 0 || request.threads == 0)
    return text("%s: launched with an empty grid or block", kernel.name);
  if (request.threads > kernel.max_threads || request.threads > kMaxThreads) {
    return text("%s: launched with %u threads a block, and has at most %u", kernel.name, request.threads,
                std::min(kernel.max_threads, kMaxThreads));
  }
  if (request.shared_bytes > kMaxSharedBytes) {
    return text("%s: launched with %zu bytes of shared memory, of %zu that a block can have", kernel.name,
                request.shared_bytes, kMaxSharedBytes);
  }
  return {};
}

std::string run(const LaunchRequest& request, DeviceMemory& memory) {
  const std::string refused = refusal(request);
  if (!refused.empty()) return refused;
  Launch launch(request, memory);
  std::vector<std::thread> others;
  const unsigned resident = std::max(1u, std::min(request.resident, request.blocks));
  for (unsigned i = 1; i < resident; i++) others.emplace_back([&launch] { run_blocks(launch); });
  run_blocks(launch);
  for (std::thread& other : others) other.join();
  acquire_from(&launch.end_place);
  blocks().end_of_launch();
  if (launch.failed()) return launch.why();
  const std::string damage = memory.damage();
  if (!damage.empty()) return text("%s: wrote %s", request.kernel->name, damage.c_str());
  return {};
}

}  // namespace securecoll::emulator
