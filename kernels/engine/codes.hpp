// The frozen code table of the protocol: collectives, dtypes, reductions and errors.
//
// These numbers enter every record's associated data (see docs/protocol.md). They may be extended, never
// renumbered. securecoll/codes.py holds the same table for Python; tests/test_codes.py compares the two.
#pragma once

#if defined(__CUDACC_RTC__)
#include "cuda/fixed_width.cuh"  // NVRTC brings no standard headers
#else
#include <cstddef>
#include <cstdint>
#endif

namespace securecoll {

enum class Collective : uint8_t {
  all_reduce = 1,
  reduce_scatter = 2,
  all_gather = 3,
  broadcast = 4,
  reduce = 5,
  gather = 6,
  scatter = 7,
  all_to_all = 8,
  barrier = 9,
  // Not of a whole group: between two ranks.
  send = 10,
  receive = 11,
};

enum class DType : uint8_t {
  none = 0,  // barrier
  u8 = 1,
  i8 = 2,
  u16 = 3,
  i16 = 4,
  u32 = 5,
  i32 = 6,
  u64 = 7,
  i64 = 8,
  f16 = 9,
  bf16 = 10,
  f32 = 11,
  f64 = 12,
  c64 = 13,   // complex of two f32
  c128 = 14,  // complex of two f64
  boolean = 15,
  f8e4m3fn = 16,
  f8e5m2 = 17,
  f8e4m3fnuz = 18,
  f8e5m2fnuz = 19,
};
inline constexpr int kDTypes = 20;

enum class RedOp : uint8_t {
  none = 0,
  sum = 1,
  avg = 2,
  product = 3,
  min = 4,
  max = 5,
  band = 6,
  bor = 7,
  bxor = 8,
  premul_sum = 9,
};
inline constexpr int kRedOps = 10;

#if !defined(__CUDACC_RTC__)  // to NVRTC there is no host
// Bytes of one element; 0 for DType::none and for codes outside the table.
constexpr size_t element_bytes(DType t) {
  constexpr uint8_t sizes[kDTypes] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1, 1, 1, 1};
  const auto i = static_cast<unsigned>(t);
  return i < static_cast<unsigned>(kDTypes) ? sizes[i] : 0;
}
#endif

// One kind per error class of securecoll/errors.py.
enum class ErrorKind : uint8_t {
  none = 0,
  config = 1,          // bad arguments or environment; nothing was sent
  handshake = 2,       // joining failed
  authentication = 3,  // a record or a lane did not verify
  mismatch = 4,        // ranks made different calls
  peer_lost = 5,       // a peer died or left
  timeout = 6,         // the deadline passed
  closed = 7,          // the communicator is closed, aborted or belongs to the parent of a fork
};

#if !defined(__CUDACC_RTC__)
const char* name_of(Collective c);
const char* name_of(DType t);
const char* name_of(RedOp op);
#endif

}  // namespace securecoll
