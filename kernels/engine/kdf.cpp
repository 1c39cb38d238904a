// SHA-256 is used through libcrypto's plain-struct interface, which OpenSSL 3 marks as deprecated but ships: an EVP
// context lies on libcrypto's heap, where a copy of the key could not be wiped. Here every context that saw a key lies
// in the arena.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "engine/kdf.hpp"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace securecoll {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kDigest = 32;

// HMAC-SHA-256 (RFC 2104). Plain data in the arena, so that a copy of the keyed state is wiped with its secret.
struct Hmac {
  SHA256_CTX inner;
  SHA256_CTX outer;
  uint8_t block[kBlock];
  uint8_t digest[kDigest];

  void key(const uint8_t* key, size_t bytes) {
    std::memset(block, 0, kBlock);
    if (bytes > kBlock) {
      SHA256_Init(&inner);
      SHA256_Update(&inner, key, bytes);
      SHA256_Final(block, &inner);
    } else if (bytes != 0) {
      std::memcpy(block, key, bytes);
    }
    for (uint8_t& b : block) b ^= 0x36;
    SHA256_Init(&inner);
    SHA256_Update(&inner, block, kBlock);
    for (uint8_t& b : block) b ^= 0x36 ^ 0x5c;
    SHA256_Init(&outer);
    SHA256_Update(&outer, block, kBlock);
  }
  void update(const void* data, size_t bytes) {
    if (bytes != 0) SHA256_Update(&inner, data, bytes);
  }
  void finish(uint8_t out[kDigest]) {
    SHA256_Final(digest, &inner);
    SHA256_Update(&outer, digest, kDigest);
    SHA256_Final(out, &outer);
  }
};

class KeyedHmac {
 public:
  KeyedHmac() : state_(sizeof(Hmac)) {}
  Hmac* operator->() { return reinterpret_cast<Hmac*>(state_.data()); }

 private:
  Secret state_;
};

// An erased secret must never be taken for a key. (Secret::data() refuses a parent's.)
const Secret& usable(const Secret& secret) {
  if (secret.empty()) throw std::runtime_error("the secret was erased");
  return secret;
}

}  // namespace

Secret hkdf_extract(const Secret* salt, const Secret& ikm) {
  static constexpr uint8_t kZeros[kDigest] = {};
  usable(ikm);
  if (salt != nullptr) usable(*salt);
  Secret prk(kDigest);
  KeyedHmac hmac;
  hmac->key(salt != nullptr ? salt->data() : kZeros, salt != nullptr ? salt->size() : kDigest);
  hmac->update(ikm.data(), ikm.size());
  hmac->finish(prk.data());
  return prk;
}

Secret expand_label(const Secret& secret, std::string_view label, const void* ctx, size_t ctx_bytes, size_t length) {
  static constexpr std::string_view kPrefix = "scoll1 ";
  usable(secret);
  if (label.size() > 255 - kPrefix.size() || ctx_bytes > 255) {
    throw std::runtime_error("a label or context of " + std::to_string(std::max(label.size(), ctx_bytes)) +
                             " bytes does not fit its length byte");
  }
  if (length == 0 || length > 255 * kDigest) {
    throw std::runtime_error("HKDF-SHA-256 expands to 1 to 8160 bytes, not " + std::to_string(length));
  }
  std::vector<uint8_t> info;
  info.reserve(4 + kPrefix.size() + label.size() + ctx_bytes);
  info.push_back(static_cast<uint8_t>(length >> 8));
  info.push_back(static_cast<uint8_t>(length));
  info.push_back(static_cast<uint8_t>(kPrefix.size() + label.size()));
  info.insert(info.end(), kPrefix.begin(), kPrefix.end());
  info.insert(info.end(), label.begin(), label.end());
  info.push_back(static_cast<uint8_t>(ctx_bytes));
  const auto* const context = static_cast<const uint8_t*>(ctx);
  info.insert(info.end(), context, context + ctx_bytes);

  Secret out(length);
  Secret block(kDigest);
  KeyedHmac hmac;
  size_t done = 0;
  for (uint8_t counter = 1; done < length; ++counter) {
    hmac->key(secret.data(), secret.size());
    if (counter > 1) hmac->update(block.data(), kDigest);
    hmac->update(info.data(), info.size());
    hmac->update(&counter, 1);
    hmac->finish(block.data());
    const size_t part = std::min(kDigest, length - done);
    std::memcpy(out.data() + done, block.data(), part);
    done += part;
  }
  return out;
}

void hmac_sha256(const Secret& key, const void* data, size_t bytes, uint8_t out[32]) {
  usable(key);
  KeyedHmac hmac;
  hmac->key(key.data(), key.size());
  hmac->update(data, bytes);
  hmac->finish(out);
}

void sha256(const void* data, size_t bytes, uint8_t out[32]) { SHA256(static_cast<const uint8_t*>(data), bytes, out); }

bool equal_constant_time(const void* a, const void* b, size_t bytes) noexcept {
  return CRYPTO_memcmp(a, b, bytes) == 0;
}

}  // namespace securecoll
