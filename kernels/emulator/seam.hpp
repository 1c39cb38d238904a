// What kernels call of the emulator, under the names of cuda_names.hpp and of cuda/platform.cuh.
#pragma once
#include <cstddef>
#include <cstdint>

struct uint3 {
  unsigned x, y, z;
};

namespace securecoll::emulator {

// What a kernel's thread sees of itself. One for each thread of a block; the block's scheduler says which one runs.
struct ThreadView {
  uint3 thread, block, block_size, grid_size;
  uint8_t* window;  // the block's shared memory window
};
// Plain __thread: a C++ thread_local would be reached through a function, and kernels read this all the time. Not of
// the initial-exec model, for a process has room for a few libraries of that kind, and tests load many; but
// ThreadSanitizer, which has a process to itself, takes the other model's look-up for an access of its own.
#if defined(SC_EMULATOR_TSAN)
#define SC_TLS_MODEL __attribute__((tls_model("initial-exec")))
#else
#define SC_TLS_MODEL
#endif
extern __thread ThreadView* current SC_TLS_MODEL;

// Where in the source a barrier or a warp operation stands.
struct Site {
  const char* file;
  int line;
};

using KernelBody = void (*)(const void* args);

// A kernel that can be launched by name; SC_KERNEL makes one as a static object, and that registers it.
struct Kernel {
  Kernel(const char* name, size_t args_bytes, unsigned max_threads, KernelBody body);
  const char* const name;
  const size_t args_bytes;
  const unsigned max_threads;  // of a block
  const KernelBody body;
};

uint8_t* shared_memory(size_t bytes, size_t alignment);
inline uint8_t* shared_window() { return current->window; }
uint32_t shared_offset(const void* at);

// A multiple of `bytes`, as a GPU demands of every access.
void check_alignment(const void* at, size_t bytes);
// Before an atomic operation: checks the address, and lets other threads go first now and then.
void before_atomic(const void* at, size_t bytes);
// The same before a load that may be one of a loop that waits: always lets others go first.
void before_poll(const void* at, size_t bytes);
void threadfence();
[[noreturn]] void trap();

void block_barrier(Site site);
void warp_barrier(uint32_t mask, Site site);
uint32_t warp_ballot(uint32_t mask, bool vote, Site site);
// What lane `source` put in.
uint64_t warp_shuffle(uint32_t mask, uint64_t value, uint32_t source, Site site);
void binary_mma(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

}  // namespace securecoll::emulator
