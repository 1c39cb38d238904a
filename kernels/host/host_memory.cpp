#include "host/host_memory.hpp"

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

class HostMemory final : public Memory {
 public:
  explicit HostMemory(const AeadKernels& aead) : aead_(aead) {}

  void* expand(const uint8_t key[32]) override {
    void* room = Arena::instance().allocate(sizeof(AeadKey));
    aead_.expand(static_cast<AeadKey*>(room), key);
    return room;
  }
  void discard(void* key) noexcept override { Arena::instance().release(key, sizeof(AeadKey)); }

  void seal(const RecordContext& r, const uint8_t* plain, size_t bytes, uint8_t* sealed) override {
    const auto seal = r.far && aead_.seal_far != nullptr ? aead_.seal_far : aead_.seal;
    seal(*static_cast<const AeadKey*>(r.key), r.nonce, r.associated, kAssociatedBytes, plain, bytes, sealed,
         sealed + bytes);
  }
  bool open(const RecordContext& r, const uint8_t* sealed, size_t bytes, uint8_t* plain,
            const void* prefetch) override {
    return aead_.open(*static_cast<const AeadKey*>(r.key), r.nonce, r.associated, kAssociatedBytes, sealed, bytes,
                      sealed + bytes, plain, prefetch);
  }
  void reduce(const ReduceTask& t) override {
    const uint32_t flags = (t.a_is_accumulator ? kAIsAccumulator : 0u) |
                           (t.out_is_accumulator ? kOutIsAccumulator : 0u) | (t.scale_a ? kScaleA : 0u) |
                           (t.scale_b ? kScaleB : 0u) | (t.finish ? kFinish : 0u);
    reduce_kernel(t.dtype, t.op)({t.out, t.a, t.b, t.count, t.factor, t.world, flags});
  }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void zero(void* at, size_t bytes) noexcept override { std::memset(at, 0, bytes); }
  bool reducible(DType dtype, RedOp op) const override { return reduce_kernel(dtype, op) != nullptr; }

 private:
  const AeadKernels& aead_;
};

}  // namespace

Memory* memory(const char* kernels) {
  static std::mutex mutex;
  static auto* made = new std::map<std::string, Memory*>;  // leaked: streams outlive statics
  const AeadKernels* aead_kernels = kernels ? aead_by_name(kernels) : &aead();
  if (!aead_kernels) return nullptr;
  std::lock_guard lock(mutex);
  Memory*& m = (*made)[aead_kernels->name];
  if (!m) m = new HostMemory(*aead_kernels);
  return m;
}

}  // namespace securecoll::host
