// AEGIS-256X4 under whole nonces of 32 bytes, as its published vectors have them, where kernel sets take 12 bytes.
// A translation unit selects its instruction set, includes this, and names its functions.
#pragma once
#include "host/aegis.hpp"

namespace {

template <class Vector>
struct WholeNonces {
  using Cipher = securecoll::host::Aegis<Vector>;
  securecoll::host::AeadKey key;
  securecoll::host::Nonce nonce;

  WholeNonces(const uint8_t* raw_key, const uint8_t* raw_nonce) {
    Cipher::expand(&key, raw_key);
    nonce = {{securecoll::host::block_at(raw_nonce), securecoll::host::block_at(raw_nonce + 16)}};
  }
  void seal(const uint8_t* aad, size_t aad_bytes, const uint8_t* plain, size_t bytes, uint8_t* sealed) const {
    const auto tag = Cipher::template crypt<true>(key, nonce, aad, aad_bytes, plain, bytes, sealed, nullptr);
    Cipher::store_tag(sealed + bytes, tag);
  }
  bool open(const uint8_t* aad, size_t aad_bytes, const uint8_t* sealed, size_t bytes, uint8_t* plain) const {
    const auto tag = Cipher::template crypt<false>(key, nonce, aad, aad_bytes, sealed, bytes, plain, nullptr);
    return Cipher::is_tag(sealed + bytes, tag);
  }
};

}  // namespace

// Functions seal_NAME and open_NAME, for ctypes.
#define WHOLE_NONCES(name, vector)                                                                    \
  extern "C" void seal_##name(const uint8_t* key, const uint8_t* nonce, const uint8_t* aad, size_t a, \
                              const uint8_t* plain, size_t n, uint8_t* sealed) {                      \
    WholeNonces<securecoll::host::vector>(key, nonce).seal(aad, a, plain, n, sealed);                 \
  }                                                                                                   \
  extern "C" int open_##name(const uint8_t* key, const uint8_t* nonce, const uint8_t* aad, size_t a,  \
                             const uint8_t* sealed, size_t n, uint8_t* plain) {                       \
    return WholeNonces<securecoll::host::vector>(key, nonce).open(aad, a, sealed, n, plain);          \
  }
