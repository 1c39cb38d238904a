// The arena: where every secret of the process lives.
//
// Private anonymous pages that are locked (never swapped), left out of core dumps, and wiped in a forked child, which
// starts an arena of its own. Blocks are wiped when they are freed. One arena per process.
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
  // Wipes and takes back a block; `bytes` as allocated. Null is allowed, and so is a block of the parent of a fork,
  // which is left alone: it was wiped by the fork.
  void release(void* block, size_t bytes) noexcept;
  size_t used_bytes() const noexcept;

 private:
  Arena();
  struct State;
  State* state_;
};

// Wipes memory in a way that the compiler may not drop.
void wipe(void* p, size_t bytes) noexcept;

// A secret of fixed size in the arena: move-only, wiped on destruction. Never printed, never copied out. In a forked
// child the parent's secrets are gone, and data() throws std::runtime_error: zeros must not pass for a key.
class Secret {
 public:
  Secret() = default;
  explicit Secret(size_t bytes);
  Secret(const void* from, size_t bytes);
  // From the kernel's generator.
  static Secret random(size_t bytes);
  Secret(Secret&& o) noexcept;
  Secret& operator=(Secret&& o) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();
  void erase() noexcept;
  bool empty() const noexcept { return data_ == nullptr; }
  uint8_t* data();
  const uint8_t* data() const { return const_cast<Secret*>(this)->data(); }
  size_t size() const noexcept { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  uint64_t generation_ = 0;  // of the process that made it, see fork.hpp
};

}  // namespace securecoll
