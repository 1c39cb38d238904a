#include "host/host_memory.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "engine/arena.hpp"
#include "host/aead.hpp"
#include "host/reduce.hpp"

namespace securecoll::host {
namespace {

// Past the caches: the lines of `to` are not fetched to be overwritten.
void copy_far(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64, kAhead = 2048;
  auto* t = static_cast<uint8_t*>(to);
  auto* f = static_cast<const uint8_t*>(from);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(t) % kLine) % kLine);
  std::memcpy(t, f, head);
  const size_t end = head + (bytes - head) / kLine * kLine;
  for (size_t i = head; i < end; i += kLine) {
    __builtin_prefetch(f + i + kAhead, 0, 0);
    __m128i line[4];
    std::memcpy(line, f + i, kLine);
    for (size_t j = 0; j < 4; j++) _mm_stream_si128(reinterpret_cast<__m128i*>(t + i) + j, line[j]);
  }
  std::memcpy(t + end, f + end, bytes - end);
  _mm_sfence();  // such stores are not ordered before those that tell another thread of them
#else
  std::memcpy(to, from, bytes);
#endif
}

class HostMemory final : public Memory {
 public:
  explicit HostMemory(const AeadKernels& aead) : aead_(aead) {}

  void* expand(const uint8_t key[32]) override {
    void* room = Arena::instance().allocate(sizeof(AeadKey));
    aead_.expand(static_cast<AeadKey*>(room), key);
    return room;
  }
  void discard(void* key) noexcept override { Arena::instance().release(key, sizeof(AeadKey)); }

  uint8_t* allocate(size_t bytes) override {
    return static_cast<uint8_t*>(::operator new(bytes, std::align_val_t{64}));
  }
  void release(uint8_t* at, size_t) noexcept override { ::operator delete(at, std::align_val_t{64}); }

  Ticket seal(Queue, const RecordContext& r, const uint8_t* plain, size_t bytes, uint8_t* const* sealed, size_t lanes,
              uint8_t* room) override {
    const auto seal = r.far && lanes == 1 && aead_.seal_far != nullptr ? aead_.seal_far : aead_.seal;
    uint8_t* at = lanes == 1 ? sealed[0] : room;
    seal(*static_cast<const AeadKey*>(r.key), r.nonce, r.associated, kAssociatedBytes, plain, bytes, at, at + bytes);
    if (lanes > 1)
      for (size_t i = 0; i < lanes; i++) std::memcpy(sealed[i], room, bytes + kTagBytes);
    return kNow;
  }
  Opened open(const RecordContext& r, const uint8_t* sealed, size_t bytes, uint8_t* plain,
              const void* prefetch) override {
    const auto open = r.far && aead_.open_far != nullptr ? aead_.open_far : aead_.open;
    Opened opened;
    opened.refused = !open(*static_cast<const AeadKey*>(r.key), r.nonce, r.associated, kAssociatedBytes, sealed, bytes,
                           sealed + bytes, plain, prefetch);
    return opened;
  }
  Opened open_reduce(const RecordContext& r, const uint8_t* sealed, size_t bytes, uint8_t* room, const void* prefetch,
                     const ReduceTask& task) override {
    const Opened opened = open(r, sealed, bytes, room, prefetch);
    if (!opened.refused && task.count) reduce(Queue::receive, task);
    return opened;
  }
  Forwarded forward(const Forwarding& f) override {
    Forwarded done;
    std::memcpy(f.room, f.from, f.bytes + kTagBytes);
    if (f.record) done.opened = open(*f.record, f.room, f.bytes, f.plain, nullptr);
    if (done.opened.refused) return done;
    for (size_t i = 0; i < f.lanes; i++) std::memcpy(f.to[i], f.room, f.bytes + kTagBytes);
    return done;
  }
  void reduce(Queue, const ReduceTask& t) override {
    const uint32_t flags = (t.a_is_accumulator ? kAIsAccumulator : 0u) |
                           (t.out_is_accumulator ? kOutIsAccumulator : 0u) | (t.scale_a ? kScaleA : 0u) |
                           (t.scale_b ? kScaleB : 0u) | (t.finish ? kFinish : 0u);
    reduce_kernel(t.dtype, t.op)({t.out, t.a, t.b, t.count, t.factor, t.world, flags});
  }
  void copy(Queue, void* to, const void* from, size_t bytes, bool far) override {
    if (far)
      copy_far(to, from, bytes);
    else
      std::memcpy(to, from, bytes);
  }
  void zero(void* at, size_t bytes) noexcept override { std::memset(at, 0, bytes); }
  bool reducible(DType dtype, RedOp op) const override { return reduce_kernel(dtype, op) != nullptr; }

 private:
  const AeadKernels& aead_;
};

}  // namespace

Memory* memory(Suite suite, const char* kernels) {
  static std::mutex mutex;
  static auto* made = new std::map<std::string, Memory*>;  // leaked: streams outlive statics
  const AeadKernels* aead_kernels = kernels ? aead_by_name(kernels) : aead(suite);
  if (!aead_kernels || aead_kernels->suite != suite) return nullptr;
  std::lock_guard lock(mutex);
  Memory*& m = (*made)[aead_kernels->name];
  if (!m) m = new HostMemory(*aead_kernels);
  return m;
}

}  // namespace securecoll::host
