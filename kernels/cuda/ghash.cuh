// GHASH (NIST SP 800-38D, section 6.4) of a record by one CTA or several: how its blocks are dealt out.
//
// The hash of blocks X_0 .. X_{n-1} is the sum of X_i * H^(n - i). The blocks are cut into macro-blocks of 2048, and a
// CTA walks over macro-blocks. In one, warp w has 256 blocks from 256 * w on, and lane l of it those at l, l + 32,
// l + 64, .., so that a warp reads 512 bytes at once. What is missing to a whole number of macro-blocks is put in
// front, where zeros change nothing.
//
// Two implementations stand behind the same names, and nothing else knows which it is:
//   HashKey       what it needs for a key, computed on the device by expand_hash_key()
//   HashShared    its part of a CTA's shared memory, filled by load_hash()
//   Hash          one thread's part of a running hash: clear_hash(), absorb(), and in the end hash_share()
// SECURECOLL_PORTABLE_GHASH forces the portable one, for tests.
#pragma once
#include "gf128.cuh"
#include "launch.hpp"

namespace securecoll::cuda {

constexpr u32 kWarps = kThreads / 32;
constexpr u32 kBlocks = 8;  // per thread and macro-block
constexpr u32 kWarpBlocks = 32 * kBlocks;
constexpr u32 kMacroBits = 11;
constexpr u32 kMacroBlocks = 1u << kMacroBits;
static_assert(kWarps * kWarpBlocks == kMacroBlocks);

// H^(2^i) is power[i], H^-(2^i) inverse[i]; the latter reach back over one macro-block.
constexpr u32 kPowers = 32;
constexpr u32 kInverses = kMacroBits;

}  // namespace securecoll::cuda

// The 1-bit tensor-core product is an instruction from sm_80 to sm_90; later ones emulate it.
#if !defined(SECURECOLL_PORTABLE_GHASH) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1000)
#include "ghash_tensor.cuh"
#else
#include "ghash_portable.cuh"
#endif
