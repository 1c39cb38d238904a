// A stream: a key, its nonce space and its audience.
//
// A link stream has one writer and one reader; a sender stream one writer and every member as reader. The nonce of a
// record is its collective's sequence number and its number on this stream within that collective, both fixed by the
// plan on both ends (of messages, by their order): neither is sent, none is drawn, none is given back. A stream takes
// its root by move, so no second stream can be made of the same root.
#pragma once
#include <cstdint>
#include <utility>

#include "engine/arena.hpp"
#include "engine/memory.hpp"

namespace securecoll {

enum class Use : uint8_t { collective = 1, point_to_point = 2, control = 3, bulk = 4 };

class Stream {
 public:
  Stream() = default;
  Stream(Secret root, uint16_t channel, Use use);
  // The two streams of one direction between two ranks: for messages and for bulk. Their uses differ, and so their
  // keys.
  static std::pair<Stream, Stream> point_to_point(Secret root, uint16_t channel);
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream() { erase(); }

  // The nonce and associated data of one record, with the key as `memory` wants it. Derived on first use: at most two
  // memories, CPU and device, use one stream, and never for the same sequence.
  RecordContext record(Memory& memory, uint64_t sequence, uint32_t number, uint32_t length, uint64_t descriptor);
  // root <- XL(root, "upd", "", 32); the old root and key are erased.
  void step_epoch();
  void erase() noexcept;
  bool erased() const noexcept { return root_.empty(); }
  uint32_t epoch() const noexcept { return epoch_; }

 private:
  struct Expanded {
    Memory* memory = nullptr;
    void* key = nullptr;
  };
  const void* key(Memory& memory);

  Secret root_;
  Secret iv_;
  Expanded expanded_[2];
  uint32_t epoch_ = 0;
  uint16_t channel_ = 0;
  Use use_ = Use::collective;
};

}  // namespace securecoll
