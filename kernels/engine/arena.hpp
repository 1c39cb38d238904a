// The arena: where every secret of the process lives.
//
// Private anonymous pages that are locked (never swapped), left out of core dumps, and wiped in a forked child.
// Blocks are wiped when they are freed. One arena per process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace securecoll {

class Arena {
 public:
  static Arena& instance();
  // 64-byte aligned, zeroed. Throws std::runtime_error saying what to do (`ulimit -l`) when pages cannot be
  // locked.
  void* allocate(size_t bytes);
  // Wipes and takes back a block; `bytes` as allocated. Null is allowed.
  void release(void* block, size_t bytes) noexcept;
  // False in a child made by fork after the arena's first use: its secrets are gone there.
  bool alive() const noexcept;
  size_t used_bytes() const noexcept;

 private:
  Arena();
  struct State;
  State* state_;
};

// Wipes memory in a way that the compiler may not drop.
void wipe(void* p, size_t bytes) noexcept;

// A secret of fixed size in the arena: move-only, wiped on destruction. Never printed, never copied out.
class Secret {
 public:
  Secret() = default;
  explicit Secret(size_t bytes);
  Secret(const void* from, size_t bytes);
  Secret(Secret&& o) noexcept;
  Secret& operator=(Secret&& o) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();
  void erase() noexcept;
  bool empty() const noexcept { return data_ == nullptr; }
  uint8_t* data() noexcept { return data_; }
  const uint8_t* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace securecoll
