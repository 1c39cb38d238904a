// One mistake in each kernel, for the emulator to find. With `correct` set the mistake is not made.
#include "cuda/platform.cuh"

namespace securecoll::cuda {

struct BugArgs {
  uint64_t out;    // 256 words
  uint64_t other;  // a few words more, zero at first
  uint32_t correct;
  uint32_t reserved;
};

struct Scratch {
  u32 word[256];
};

namespace {

SC_DEVICE u32* words(uint64_t address) { return reinterpret_cast<u32*>(address); }

}  // namespace

SC_KERNEL(missing_barrier, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  scratch.word[threadIdx.x] = threadIdx.x;
  if (args.correct) __syncthreads();
  words(args.out)[threadIdx.x] = scratch.word[255 - threadIdx.x];
}

// The second use of the scratch overtakes the first.
SC_KERNEL(missing_second_barrier, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  u32 sum = 0;
  for (u32 round = 0; round < 2; round++) {
    scratch.word[threadIdx.x] = threadIdx.x + round;
    __syncthreads();
    sum += scratch.word[255 - threadIdx.x];
    if (args.correct) __syncthreads();
  }
  words(args.out)[threadIdx.x] = sum;
}

SC_KERNEL(lockstep, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  scratch.word[threadIdx.x] = threadIdx.x;
  if (args.correct) __syncwarp();
  words(args.out)[threadIdx.x] = scratch.word[threadIdx.x ^ 1];
}

// A shuffle brings the lanes together and orders none of their memory.
SC_KERNEL(shuffle_as_barrier, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  scratch.word[threadIdx.x] = threadIdx.x;
  const u32 zero = __shfl_sync(0xffffffffu, 0u, 0);
  if (args.correct) __syncwarp();
  words(args.out)[threadIdx.x] = scratch.word[threadIdx.x ^ 1] + zero;
}

// Warps read what one warp wrote, after a barrier of that warp alone.
SC_KERNEL(warp_barrier_for_block, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  if (threadIdx.x < 32) scratch.word[threadIdx.x] = threadIdx.x;
  __syncwarp();
  if (args.correct) __syncthreads();
  words(args.out)[threadIdx.x] = scratch.word[threadIdx.x & 31];
}

// Half of a warp meets; the other half reads.
SC_KERNEL(half_warp_barrier, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  const u32 half = threadIdx.x & 16;
  scratch.word[threadIdx.x] = threadIdx.x;
  __syncwarp(args.correct ? 0xffffffffu : 0xffffu << half);
  words(args.out)[threadIdx.x] = scratch.word[threadIdx.x ^ 16];
}

// One thread overwrites what all of the block, or all of its warp, may still be reading.
SC_KERNEL(overwritten_for_block, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  if (threadIdx.x == 254) scratch.word[0] = 1;
  __syncthreads();
  words(args.out)[threadIdx.x] = scratch.word[0];
  if (args.correct) __syncthreads();
  if (threadIdx.x == 254) scratch.word[0] = 2;
}

SC_KERNEL(overwritten_for_warp, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  u32& word = scratch.word[threadIdx.x / 32];
  if (threadIdx.x % 32 == 30) word = 1;
  __syncwarp();
  words(args.out)[threadIdx.x] = word;
  if (args.correct) __syncwarp();
  if (threadIdx.x % 32 == 30) word = 2;
}

SC_KERNEL(unwritten, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  if (threadIdx.x < 255 || args.correct) scratch.word[threadIdx.x] = threadIdx.x;
  __syncthreads();
  words(args.out)[threadIdx.x] = scratch.word[255 - threadIdx.x];
}

// Block 0 sends a message to block 1.
SC_KERNEL(missing_release, BugArgs, 256, 1) {
  u32* const flag = words(args.other);
  if (blockIdx.x == 0) {
    words(args.out)[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (args.correct) {
      store_release_system(flag, 1);
    } else {
      atomic_or(flag, 1);
    }
    return;
  }
  if (threadIdx.x == 0) {
    while (load_acquire_system(flag) == 0) {
    }
  }
  __syncthreads();
  words(args.out)[threadIdx.x] += 1;
}

SC_DEVICE void join_parts(const BugArgs& args, bool release, bool acquire) {
  SC_SHARED(Scratch, scratch);
  u32* const arrived = words(args.other);
  u32* const parts = words(args.other) + 1;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = 1;
    if (release) threadfence();
    scratch.word[0] = atomic_add(arrived, 1) == gridDim.x - 1;
    if (acquire) threadfence();
  }
  __syncthreads();
  if (scratch.word[0] == 0) return;
  u32 sum = 0;
  for (u32 i = 0; i < gridDim.x; i++) sum += parts[i];
  words(args.out)[threadIdx.x] = sum;
}

// The last block to arrive adds up what the others left.
SC_KERNEL(missing_fence_before_arrival, BugArgs, 256, 1) { join_parts(args, args.correct, true); }
SC_KERNEL(missing_fence_after_arrival, BugArgs, 256, 1) { join_parts(args, true, args.correct); }

SC_KERNEL(out_of_bounds, BugArgs, 256, 1) {
  const u32 i = threadIdx.x + (args.correct ? 0 : 1);
  words(args.out)[i] = threadIdx.x;
}

SC_KERNEL(before_bounds, BugArgs, 256, 1) {
  u32* const out = words(args.out);
  out[threadIdx.x] = threadIdx.x;
  if (!args.correct && threadIdx.x == 0) *(out - 1) = 0;
}

SC_KERNEL(out_of_bounds_read, BugArgs, 256, 1) {
  const u32 i = threadIdx.x + (args.correct ? 0 : 1);
  words(args.out)[threadIdx.x] = words(args.out)[i];
}

SC_KERNEL(shared_overrun, BugArgs, 256, 1) {
  SC_SHARED(Scratch, scratch);
  u32* const word = scratch.word;
  word[threadIdx.x + (args.correct ? 0 : 1)] = threadIdx.x;
  __syncthreads();
  words(args.out)[threadIdx.x] = word[threadIdx.x + (args.correct ? 0 : 1)];
}

SC_KERNEL(stack_overrun, BugArgs, 256, 1) {
  u32 local[8];
  for (u32 i = 0; i < 8; i++) local[i] = i;
  // Not known when it is compiled, and so not refused by the compiler.
  const u32 last = args.correct ? 7 : 8;
  volatile u32* const at = local;
  at[last] = threadIdx.x;
  words(args.out)[threadIdx.x] = at[7];
}

SC_KERNEL(misaligned, BugArgs, 256, 1) {
  const uint64_t at = args.out + 4 * threadIdx.x + (args.correct ? 0 : threadIdx.x == 9);
  if (threadIdx.x < 255) *reinterpret_cast<u32*>(at) = threadIdx.x;
}

SC_KERNEL(misaligned_stream, BugArgs, 256, 1) {
  const uint64_t at = args.out + (args.correct ? 0 : 4);
  if (threadIdx.x == 0) store_stream(reinterpret_cast<uint4*>(at), make_uint4(1, 2, 3, 4));
}

SC_KERNEL(divergent_barrier, BugArgs, 256, 1) {
  if (args.correct || threadIdx.x < 40) {
    words(args.out)[threadIdx.x] = 0;
    __syncthreads();
  } else {
    words(args.out)[threadIdx.x] = 1;
    __syncthreads();
  }
}

SC_KERNEL(barrier_of_some, BugArgs, 256, 1) {
  if (args.correct || threadIdx.x < 40) __syncthreads();
  while (load_acquire_system(words(args.other)) == 0) {
    if (threadIdx.x == 0) store_release_system(words(args.other), 1);
  }
}

SC_KERNEL(missing_lanes, BugArgs, 256, 1) {
  u32 v = threadIdx.x;
  if (args.correct || threadIdx.x % 32 < 7) v = __shfl_xor_sync(0xffffffffu, v, 1);
  __syncthreads();
  words(args.out)[threadIdx.x] = v;
}

SC_KERNEL(exited_lanes, BugArgs, 256, 1) {
  u32 v = threadIdx.x;
  if (!args.correct && threadIdx.x % 32 >= 7) return;
  words(args.out)[threadIdx.x] = __shfl_xor_sync(0xffffffffu, v, 1);
}

SC_KERNEL(wrong_mask, BugArgs, 256, 1) {
  const u32 v = threadIdx.x;
  words(args.out)[threadIdx.x] = __shfl_sync(args.correct ? 0xffffffffu : 0x0000ffffu, v, 1);
}

SC_KERNEL(different_operations, BugArgs, 256, 1) {
  u32 v = threadIdx.x;
  if (args.correct || threadIdx.x % 2 == 0) {
    v = __shfl_xor_sync(0xffffffffu, v, 1);
  } else {
    v = __ballot_sync(0xffffffffu, v != 0);
  }
  words(args.out)[threadIdx.x] = v;
}

SC_KERNEL(matrix_of_some, BugArgs, 256, 1) {
  int c[4] = {0, 0, 0, 0};
  const u32 a[4] = {1, 2, 3, 4};
  const u32 b[2] = {5, 6};
  if (!args.correct && threadIdx.x == 31) return;
  binary_mma(c, a, b);
  words(args.out)[threadIdx.x] = static_cast<u32>(c[0]);
}

// Thread 3 waits for what thread 0 does after a barrier that thread 3 does not reach.
SC_KERNEL(deadlock, BugArgs, 256, 1) {
  u32* const flag = words(args.other);
  if (!args.correct && threadIdx.x == 3) {
    while (load_acquire_system(flag) == 0) {
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) store_release_system(flag, 1);
  while (load_acquire_system(flag) == 0) {
  }
}

// Reads `other`, which the test lets be host memory, or memory that was released.
SC_KERNEL(stray_pointer, BugArgs, 256, 1) {
  if (args.correct) return;
  words(args.out)[threadIdx.x] = words(args.other)[0];
}

SC_KERNEL(traps, BugArgs, 256, 1) {
  __syncthreads();
  if (!args.correct && threadIdx.x == 77) trap();
}

}  // namespace securecoll::cuda
