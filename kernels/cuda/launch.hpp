// What the host hands to a kernel: one plain struct per launch, by value, read by C++17 hosts and by device compilers.
//
// Everything that differs from record to record travels in the launch itself, so a launch needs no copy of its own and
// a kernel never reads a length or an address from memory that anyone else can write. Addresses are device addresses;
// zero means absent.
#pragma once

#include "engine/codes.hpp"

#if defined(__CUDACC__)
#define SC_EVERYWHERE __host__ __device__
#else
#define SC_EVERYWHERE
#endif

namespace securecoll::cuda {

inline constexpr uint32_t kRecordsPerLaunch = 16;
// CTAs that share one record. Each takes a run of whole macro-blocks, and their GHASH parts are combined.
inline constexpr uint32_t kMaxParts = 64;
inline constexpr uint32_t kThreads = 256;
inline constexpr uint32_t kTagSize = 16;
// Dynamic shared memory of every kernel that knows a key: a CTA's own half, and the tables of AES.
inline constexpr uint32_t kSharedBytes = 131072;
// Room for one expanded key on the device: round keys, powers of H, the matrices of the tensor-core GHASH.
inline constexpr uint32_t kDeviceKeyBytes = 17408;
// Per record: one 16-byte part for each CTA, then a counter on a line of its own.
inline constexpr uint32_t kPartialBytes = 16 * kMaxParts + 64;

// On the device, one for each communicator: what must be true for anything to leave it.
struct Status {
  uint32_t failed;  // records whose tag did not verify; once it is not zero nothing is sealed or committed any more
  uint32_t first;   // ~index, among the communicator's opens, of the first that failed; 0: none did
  uint32_t reserved[14];
};

// One chunk.
struct Record {
  uint64_t key;      // an expanded key
  uint64_t input;    // sealing: plaintext, any alignment; opening: ciphertext and tag, 16-byte aligned
  uint64_t output;   // sealing: room for ciphertext and tag, 16-byte aligned; opening: plaintext, any alignment
  uint64_t operand;  // reducing: the other source, any alignment, or absent; may be exactly `output`, where
                     // elements have the same size in both
  uint64_t copy;     // opening: private room of `bytes`, 16-byte aligned. sc_verify stores the ciphertext there as it
                     // reads it, and a commit takes it from there, so that `input` is read once; absent if nobody else
                     // can write to `input`
  uint32_t index;    // opening: number of this open, for Status::first
  uint32_t bytes;    // of plaintext, less than 2^31
  uint32_t nonce[3];  // as bytes, in memory order
  uint32_t reserved;
  uint8_t associated[32];
};

// A reduction, element by element: output = finish(a (+) b), exactly as kernels/host/reduce.hpp defines it. In a
// commit one of the two is the plaintext and the other Record::operand; without an operand, the plaintext is `a`.
struct Reduction {
  uint8_t dtype;        // DType; none: no reduction
  uint8_t op;           // RedOp
  uint8_t flags;        // ReduceFlags; in a commit only the operand can be an accumulator
  uint8_t opened_is_a;  // the plaintext is `a` and the operand `b`; else the other way round
  uint32_t world;
  double factor;
};

// One CTA for each key.
struct KeyArgs {
  uint64_t wrapping;  // expanded key under which the raw keys arrive sealed, or absent: raw keys as they are
  uint64_t status;
  uint32_t count;
  uint32_t reserved;
  uint64_t sealed[kRecordsPerLaunch];  // 32 bytes, then the tag when wrapped
  uint64_t keys[kRecordsPerLaunch];    // kDeviceKeyBytes each
  uint32_t nonce[kRecordsPerLaunch][3];
};

struct CryptArgs {  // gridDim.x = records * parts; CTA i works on part i % parts of record i / parts
  uint64_t status;
  uint64_t partials;  // kPartialBytes for each record; counters zero before and after
  uint32_t records, parts;
  Reduction reduction;  // what a commit does with the plaintext before it is stored, and a reseal before it is sealed
  Record record[kRecordsPerLaunch];
};

// Sealing what a commit made: record i of `open` becomes record i of `seal`, through registers.
struct ResealArgs {
  uint64_t status;
  uint64_t partials;
  uint32_t records, parts;
  Reduction reduction;
  Record open[kRecordsPerLaunch / 2];
  Record seal[kRecordsPerLaunch / 2];
};

// `count` elements, by any grid. Arrays lie at multiples of the size of their elements, or of a complex component.
struct ReduceArgs {
  uint64_t out, a, b;
  uint64_t count;
  Reduction reduction;
};

struct GateArgs {
  uint64_t status;
};

// Whether sc_commit and sc_commit_seal can reduce (DType, RedOp) on the way; else the host launches sc_reduce behind
// them. Asked of a commit, such a reduction traps.
SC_EVERYWHERE constexpr bool fusable(uint8_t dtype, uint8_t operation) {
  const auto op = static_cast<RedOp>(operation);
  switch (static_cast<DType>(dtype)) {
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
      return op == RedOp::sum || op == RedOp::avg || op == RedOp::min || op == RedOp::max || op == RedOp::premul_sum;
    case DType::i32:
    case DType::i64:
      return op == RedOp::sum || op == RedOp::min || op == RedOp::max;
    default:
      return false;
  }
}

static_assert(sizeof(Status) == 64);
static_assert(sizeof(Record) == 96);
static_assert(sizeof(CryptArgs) <= 4096 && sizeof(ResealArgs) <= 4096 && sizeof(KeyArgs) <= 4096);

}  // namespace securecoll::cuda
