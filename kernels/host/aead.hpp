// The AEADs of the suites on CPU memory, in sets of kernels chosen by CPUID.
//
// The contract that stock libraries do not give, and why these exist: `sealed` may lie in memory that a hostile
// host reads and writes at any moment. So seal() writes each byte of it once and never reads it back, and
// open() reads each byte of it once. Plaintext, keys and `tag` results live in private memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace securecoll::host {

inline constexpr size_t kKeyBytes = 32;
inline constexpr size_t kNonceBytes = 12;
inline constexpr size_t kTagBytes = 16;

// The suites of docs/protocol.md, by their number there. Nonces, tags and keys are of one size in all of them.
enum class Suite : uint8_t { aes_256_gcm = 1, aegis_256x4 = 4 };

// An expanded key: round keys and powers of H, or whatever a kernel set wants. Plain data with no pointers into
// itself: it lives in the locked arena, and wiping its bytes destroys it.
struct alignas(64) AeadKey {
  uint8_t bytes[1536];
};

struct AeadKernels {
  const char* name;  // "vaes512", "vaes256", "libcrypto"; "aegis-vaes512", "aegis-vaes256", "aegis-aesni"
  Suite suite;
  // Expanding, sealing and opening do not fail, except that "libcrypto" throws std::runtime_error when libcrypto has
  // no memory or no AES-256-GCM.
  void (*expand)(AeadKey* key, const uint8_t raw[kKeyBytes]);
  // Seals `bytes` (0 .. 2^36-32) from private `plain` into `sealed`, then the 16-byte tag at `tag`; both may be
  // untrusted memory, each byte written once.
  void (*seal)(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
               const uint8_t* plain, size_t bytes, uint8_t* sealed, uint8_t* tag);
  // Opens `bytes` from `sealed` into private `plain` and returns whether the 16 bytes at `tag` verify, compared
  // in constant time. `sealed` and `tag` may be untrusted, each byte read once. `plain` is written before the
  // verdict is known: on false the caller must treat it as garbage and must not let anyone see it. When
  // `prefetch` is not null, `bytes` bytes from there on are prefetched for writing meanwhile.
  bool (*open)(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
               const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void* prefetch);
  // As seal, with stores that pass the caches: faster when `sealed` was last read by a core that shares no cache with
  // this one, slower for a reader that shares one. May be null.
  void (*seal_far)(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                   const uint8_t* plain, size_t bytes, uint8_t* sealed, uint8_t* tag);
  // As open, with stores that pass the caches, and nothing prefetched: for plaintext that no cache would still hold
  // when somebody reads it. May be null.
  bool (*open_far)(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
                   const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void* prefetch);
};

// The fastest set of a suite that this CPU runs, or null where it runs none, which of AES-256-GCM never happens.
// Answers are checked once per process, for every set the CPU supports; a wrong one throws std::runtime_error: the
// build or the CPU is broken.
const AeadKernels* aead(Suite suite);

// A set of any suite by name, or null where the name is unknown or the CPU lacks it. Known answers were checked.
const AeadKernels* aead_by_name(const char* name);

// Names of a suite's sets that this CPU runs, fastest first, ended by null.
const char* const* aead_names(Suite suite);

}  // namespace securecoll::host
