// One kernel for each group of names that platform.cuh and CUDA give to kernels, for tests to compare with a model.
#include "cuda/platform.cuh"

namespace securecoll::cuda {

struct ProbeArgs {
  uint64_t out;
  uint64_t in;
  uint64_t more;
  uint32_t a, b;
};

namespace {

SC_DEVICE u32* words(uint64_t address) { return reinterpret_cast<u32*>(address); }
SC_DEVICE u64* doubles(uint64_t address) { return reinterpret_cast<u64*>(address); }
SC_DEVICE u32 index() { return blockIdx.x * blockDim.x + threadIdx.x; }

__constant__ const u32 kSquares[8] = {0, 1, 4, 9, 16, 25, 36, 49};

struct Tables {
  u8 room[65536 + 65536 - 1024];  // 64 KiB from a multiple of 64 KiB in the window on, wherever the window starts
};

struct Row {
  u32 word[1024];
};

}  // namespace

// out: 5 words a thread
SC_KERNEL(probe_coordinates, ProbeArgs, 1024, 1) {
  u32* const out = words(args.out) + 5 * index();
  out[0] = threadIdx.x;
  out[1] = blockIdx.x;
  out[2] = blockDim.x;
  out[3] = gridDim.x;
  out[4] = kSquares[threadIdx.x % 8];
}

// in: 3 words a thread; out: 8
SC_KERNEL(probe_words, ProbeArgs, 256, 1) {
  const u32* const in = words(args.in) + 3 * index();
  u32* const out = words(args.out) + 8 * index();
  const u32 a = in[0], b = in[1], c = in[2];
  out[0] = __byte_perm(a, b, c);
  out[1] = __funnelshift_l(a, b, c);
  out[2] = __funnelshift_r(a, b, c);
  out[3] = __brev(a);
  out[4] = static_cast<u32>(__popc(a));
  out[5] = static_cast<u32>(__clz(static_cast<i32>(a)));
  out[6] = static_cast<u32>(__ffs(static_cast<i32>(a)));
  out[7] = __umulhi(a, b);
}

// in: 1 double word a thread; out: 6
SC_KERNEL(probe_doubles, ProbeArgs, 256, 1) {
  const u64 a = doubles(args.in)[index()];
  u64* const out = doubles(args.out) + 6 * index();
  out[0] = __brevll(a);
  out[1] = static_cast<u64>(__popcll(a));
  out[2] = static_cast<u64>(__clzll(static_cast<long long>(a)));
  out[3] = __float_as_uint(__uint_as_float(static_cast<u32>(a)) * 2.0f);
  out[4] = static_cast<u64>(__double_as_longlong(__longlong_as_double(static_cast<long long>(a)) * 2.0));
  out[5] = 0;
}

// in: value and lanes of each thread; a: width; b: mask, of whose lanes each thread is one; out: 6 words a thread
SC_KERNEL(probe_warp, ProbeArgs, 256, 1) {
  const u32 value = words(args.in)[2 * index()];
  const u32 lanes = words(args.in)[2 * index() + 1];
  const int width = static_cast<int>(args.a);
  const u32 mask = args.b;
  u32* const out = words(args.out) + 6 * index();
  if (!(mask >> threadIdx.x % 32 & 1)) return;
  out[0] = __shfl_sync(mask, value, static_cast<int>(lanes), width);
  out[1] = __shfl_xor_sync(mask, value, static_cast<int>(args.more), width);
  out[2] = __shfl_up_sync(mask, value, static_cast<u32>(args.more), width);
  out[3] = __shfl_down_sync(mask, value, static_cast<u32>(args.more), width);
  out[4] = __ballot_sync(mask, value & 1);
  const u64 both = __shfl_sync(mask, static_cast<u64>(value) << 32 | lanes, static_cast<int>(lanes), width);
  out[5] = static_cast<u32>(both >> 32) ^ static_cast<u32>(both);
}

// Both halves of each warp shuffle on their own, and one of them more often.
SC_KERNEL(probe_halves, ProbeArgs, 256, 1) {
  u32 value = words(args.in)[index()];
  if (threadIdx.x & 16) {
    value = __shfl_xor_sync(0xffff0000u, value, 1);
  } else {
    for (u32 i = 0; i < 3; i++) value += __shfl_xor_sync(0x0000ffffu, value, 2);
  }
  words(args.out)[index()] = value;
}

// in: 4 + 2 + 4 words a lane, of one warp; out: 4
SC_KERNEL(probe_matrix, ProbeArgs, 256, 1) {
  const u32* const in = words(args.in) + 10 * index();
  u32* const out = words(args.out) + 4 * index();
  const u32 a[4] = {in[0], in[1], in[2], in[3]};
  const u32 b[2] = {in[4], in[5]};
  int c[4] = {static_cast<i32>(in[6]), static_cast<i32>(in[7]), static_cast<i32>(in[8]), static_cast<i32>(in[9])};
  binary_mma(c, a, b);
  for (u32 i = 0; i < 4; i++) out[i] = static_cast<u32>(c[i]);
}

// more: 3 words to operate on; out: 3 words a thread, what was there before
SC_KERNEL(probe_atomics, ProbeArgs, 256, 1) {
  u32* const at = words(args.more);
  u32* const out = words(args.out) + 3 * index();
  out[0] = atomic_add(at, 3);
  out[1] = atomic_or(at + 1, 1u << threadIdx.x % 32);
  out[2] = atomic_max(at + 2, index() ^ 5);
}

// in: 512 words, the tables, and then one word a thread; out: 8 words a thread
SC_KERNEL(probe_tables, ProbeArgs, 256, 1) {
  SC_SHARED(Tables, tables);
  const u32 lane = threadIdx.x % 32;
  const SharedAddress start = shared_address(&tables);
  const u32 skip = (0u - start) & 0xffffu;
  u8* const base = reinterpret_cast<u8*>(&tables) + skip;
  for (u32 row = threadIdx.x / 32; row < 256; row += blockDim.x / 32) {
    for (u32 table = 0; table < 2; table++) {
      *reinterpret_cast<u32*>(base + 256 * row + 128 * table + 4 * lane) = words(args.in)[256 * table + row];
    }
  }
  __syncthreads();
  const SharedAddress mine = table_lane(start + skip, lane);
  const u32 word = words(args.in)[512 + index()];
  u32* const out = words(args.out) + 8 * index();
  out[0] = table_load<0, 0>(word, mine);
  out[1] = table_load<1, 0>(word, mine);
  out[2] = table_load<2, 0>(word, mine);
  out[3] = table_load<3, 0>(word, mine);
  out[4] = table_load<0, 1>(word, mine);
  out[5] = table_load<1, 1>(word, mine);
  out[6] = table_load<2, 1>(word, mine);
  out[7] = table_load<3, 1>(word, mine);
}

// Copies 16 bytes a thread.
SC_KERNEL(probe_streams, ProbeArgs, 256, 1) {
  const uint4 v = load_stream(reinterpret_cast<const uint4*>(args.in) + index());
  store_stream(reinterpret_cast<uint4*>(args.out) + index(), make_uint4(v.y, v.x, v.w, v.z));
}

// Turns each block's words round.
SC_KERNEL(probe_reverse, ProbeArgs, 1024, 1) {
  SC_SHARED(Row, row);
  row.word[threadIdx.x] = words(args.in)[index()];
  __syncthreads();
  words(args.out)[index()] = row.word[blockDim.x - 1 - threadIdx.x];
}

// What shared memory holds before anything was written to it. (A checked build refuses to read it.)
SC_KERNEL(probe_garbage, ProbeArgs, 256, 1) {
  SC_SHARED(Row, row);
  words(args.out)[index()] = row.word[threadIdx.x];
}

// A token goes round the blocks a times; each adds one. more: the token, zero at first.
SC_KERNEL(probe_token, ProbeArgs, 256, 1) {
  u32* const token = words(args.more);
  for (u32 round = 0; round < args.a; round++) {
    const u32 mine = round * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) {
      while (load_acquire_system(token) != mine) {
      }
    }
    __syncthreads();
    words(args.out)[threadIdx.x] += blockIdx.x + 1;
    __syncthreads();
    threadfence();
    if (threadIdx.x == 0) store_release_system(token, mine + 1);
  }
}

// Who came first. more: a word, zero at first; out: the thread's place.
SC_KERNEL(probe_turns, ProbeArgs, 1024, 1) { words(args.out)[index()] = atomic_add(words(args.more), 1); }

// out[i] = in[i] + a, one thread a word, b words
SC_KERNEL(probe_add, ProbeArgs, 256, 1) {
  if (index() < args.b) words(args.out)[index()] = words(args.in)[index()] + args.a;
}

SC_KERNEL(probe_trap, ProbeArgs, 256, 1) {
  if (index() == args.a) trap();
}

}  // namespace securecoll::cuda
