// In the place of kernels/host/aead.cpp in the cipher-less build: records that are not sealed, to measure what sealing
// costs. As the real kernels do, each byte of a record is read once and written once, far stores pass the caches, and
// open() prefetches what it was asked to; there is nothing else. Every tag is the same 16 bytes.
#include "host/aead.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace securecoll::host {
namespace {

constexpr char kName[] = "cipherless";
constexpr uint8_t kTag[kTagBytes] = {'n', 'o', 't', ' ', 's', 'e', 'a', 'l', 'e', 'd', ' ', 'B', 'E', 'N', 'C', 'H'};
constexpr size_t kLine = 64;
constexpr size_t kAhead = 2048;  // bytes between what is read and what is prefetched for reading

void expand(AeadKey* key, const uint8_t*) { std::memset(key->bytes, 0, sizeof key->bytes); }

#if defined(__x86_64__)
// Not memcpy: on Zen 3 its `rep movsb` drops to 2 GB/s when source and target have nearly the same offset in a page.
template <bool kFar>
void copy(const uint8_t* from, size_t bytes, uint8_t* to, const char* prefetch) {
  size_t at = 0;
  for (; bytes - at >= kLine; at += kLine) {
    __builtin_prefetch(from + at + kAhead, 0, 3);
    if (prefetch != nullptr) __builtin_prefetch(prefetch + at, 1, 3);
    const auto* const in = reinterpret_cast<const __m128i*>(from + at);
    auto* const out = reinterpret_cast<__m128i*>(to + at);
    const __m128i line[4] = {_mm_loadu_si128(in), _mm_loadu_si128(in + 1), _mm_loadu_si128(in + 2),
                             _mm_loadu_si128(in + 3)};
    for (int i = 0; i < 4; ++i) {
      if constexpr (kFar) {
        _mm_stream_si128(out + i, line[i]);
      } else {
        _mm_storeu_si128(out + i, line[i]);
      }
    }
  }
  if (kFar) _mm_sfence();  // such stores are not ordered before the store that announces the record
  std::memcpy(to + at, from + at, bytes - at);
}
#else
template <bool>
void copy(const uint8_t* from, size_t bytes, uint8_t* to, const char*) {
  std::memcpy(to, from, bytes);
}
#endif

template <bool kFar>
void seal(const AeadKey&, const uint8_t*, const uint8_t*, size_t, const uint8_t* plain, size_t bytes, uint8_t* sealed,
          uint8_t* tag) {
  if (kFar && reinterpret_cast<uintptr_t>(sealed) % kTagBytes == 0) {
    copy<true>(plain, bytes, sealed, nullptr);
  } else {
    copy<false>(plain, bytes, sealed, nullptr);
  }
  std::memcpy(tag, kTag, kTagBytes);
}

bool open(const AeadKey&, const uint8_t*, const uint8_t*, size_t, const uint8_t* sealed, size_t bytes,
          const uint8_t* tag, uint8_t* plain, const void* prefetch) {
  copy<false>(sealed, bytes, plain, static_cast<const char*>(prefetch));
  return std::memcmp(tag, kTag, kTagBytes) == 0;
}

const AeadKernels kCipherless = {kName, Suite::aes_256_gcm, expand, seal<false>, open, seal<true>};

}  // namespace

const AeadKernels* aead(Suite suite) { return suite == kCipherless.suite ? &kCipherless : nullptr; }

const AeadKernels* aead_by_name(const char* name) { return std::strcmp(name, kName) == 0 ? &kCipherless : nullptr; }

const char* const* aead_names(Suite suite) {
  static constexpr const char* kNames[] = {kName, nullptr};
  return kNames + (suite != kCipherless.suite);
}

}  // namespace securecoll::host
