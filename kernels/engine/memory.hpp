// The memory seam: how the engine touches payload bytes, wherever they live.
//
// The executor moves chunks between buffers and lanes and knows neither a cipher nor a device. Each call below is one
// unit of work on one chunk, ordered after the calls before it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/codes.hpp"

namespace securecoll {

inline constexpr size_t kTagBytes = 16;
inline constexpr size_t kNonceBytes = 12;
inline constexpr size_t kAssociatedBytes = 32;

// What one record is sealed or opened under.
struct RecordContext {
  const void* key;  // from Memory::expand
  uint8_t nonce[kNonceBytes];
  uint8_t associated[kAssociatedBytes];
  bool far = false;  // sealing: store past the caches, see store_choice.hpp
};

struct ReduceTask {
  void* out;
  const void* a;
  const void* b;  // null: out = finish(a)
  uint64_t count;
  DType dtype;
  RedOp op;
  double factor;
  uint32_t world;
  bool a_is_accumulator, out_is_accumulator, scale_a, scale_b, finish;
};

class Memory {
 public:
  virtual ~Memory() = default;

  // Expands a raw key into the arena; discard() wipes it.
  virtual void* expand(const uint8_t key[32]) = 0;
  virtual void discard(void* key) noexcept = 0;

  // `sealed` is a lane's slot, untrusted: ciphertext, then the tag. Written once, never read.
  virtual void seal(const RecordContext& record, const uint8_t* plain, size_t bytes, uint8_t* sealed) = 0;
  // Whether the record verifies. Reads each byte of the slot once. `plain` is private memory, and garbage on false.
  // `prefetch`, when not null, is where `bytes` bytes will be written next.
  virtual bool open(const RecordContext& record, const uint8_t* sealed, size_t bytes, uint8_t* plain,
                    const void* prefetch) = 0;
  virtual void reduce(const ReduceTask& task) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void zero(void* at, size_t bytes) noexcept = 0;

  virtual bool reducible(DType dtype, RedOp op) const = 0;
};

}  // namespace securecoll
