// The memory of an emulated device: real addresses in an arena of their own.
//
// Fresh memory is full of seeded garbage, and so is released memory. Each allocation lies between red zones, which are
// looked at after every kernel; builds that check every access find a stray one at once. Where the processor has
// protection keys, only a thread that runs a kernel or a copy can reach the arena: a host that dereferences a device
// address faults, as it would with a GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "emulator/random.hpp"

namespace securecoll::emulator {

class DeviceMemory {
 public:
  DeviceMemory(size_t bytes, uint64_t seed);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // 256-byte aligned; 0: no room.
  uint64_t allocate(size_t bytes);
  // False: nothing was allocated there.
  bool release(uint64_t at);
  // Lets kernels reach host memory, at its own address, to read it or also to write it.
  void map(const void* host, size_t bytes, bool writable);
  bool unmap(const void* host);

  // Whether all of it is allocated, or mapped for that. Called for every access of an instrumented kernel, from any
  // thread.
  bool holds(uintptr_t at, size_t bytes, bool write) const;
  // Whether the address lies in the arena.
  bool contains(uintptr_t at) const { return at - base_ < bytes_; }
  // Where the address lies, for a diagnosis: "3 bytes past the end of an allocation of 1000 bytes".
  std::string describe(uintptr_t at) const;
  // Empty, or which red zone was written to since the last call.
  std::string damage();

  // While one of these lives, the thread that made it can reach all arenas.
  class Access {
   public:
    Access();
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    const int rights_before_;
  };

 private:
  static constexpr size_t kGranule = 256;

  uintptr_t find_room(size_t rounded, uintptr_t from) const;
  void mark(uintptr_t at, size_t bytes, bool live);
  std::string zone_damage(uintptr_t from, uintptr_t to, uintptr_t allocation, size_t bytes);

  uintptr_t base_ = 0;
  size_t bytes_;
  uint16_t* live_ = nullptr;  // for each granule, how many of its bytes are allocated, from its first
  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> allocations_;
  struct Mapping {
    size_t bytes;
    bool writable;
  };
  std::map<uintptr_t, Mapping> mapped_;
  uintptr_t cursor_;  // allocation goes round the arena, so that released memory stays unused for long
  Random random_;
};

}  // namespace securecoll::emulator
