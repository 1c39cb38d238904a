// Kernel sets that only tests use, a byte flipper to race against, and the check of known answers, for ctypes.
#include <openssl/evp.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "host/aead_sets.hpp"

using namespace securecoll::host;

#ifndef NO_EMULATION
extern const AeadKernels kEmulated512, kEmulated512Far, kAegisEmulated512, kAegisEmulated512Far;
#endif

namespace {

void keep(AeadKey* key, const uint8_t raw[kKeyBytes]) { std::memcpy(key->bytes, raw, kKeyBytes); }

// What a careful user of a good library writes, and what shared memory does not forgive: EVP works in `sealed`.
void naive_seal(const AeadKey& key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes, const uint8_t* plain,
                size_t bytes, uint8_t* sealed, uint8_t* tag) {
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  int n = 0;
  uint8_t nothing[16];
  EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), nullptr, key.bytes, nonce);
  EVP_EncryptUpdate(context, nullptr, &n, aad, static_cast<int>(aad_bytes));
  EVP_EncryptUpdate(context, sealed, &n, plain, static_cast<int>(bytes));
  EVP_EncryptFinal_ex(context, nothing, &n);
  EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag);
  EVP_CIPHER_CTX_free(context);
}

bool naive_open(const AeadKey& key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes, const uint8_t* sealed,
                size_t bytes, const uint8_t* tag, uint8_t* plain, const void*) {
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  int n = 0;
  uint8_t nothing[16], expected[kTagBytes];
  std::memcpy(expected, tag, kTagBytes);
  EVP_DecryptInit_ex(context, EVP_aes_256_gcm(), nullptr, key.bytes, nonce);
  EVP_DecryptUpdate(context, nullptr, &n, aad, static_cast<int>(aad_bytes));
  EVP_DecryptUpdate(context, plain, &n, sealed, static_cast<int>(bytes));
  EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, expected);
  const bool verified = EVP_DecryptFinal_ex(context, nothing, &n) == 1;
  EVP_CIPHER_CTX_free(context);
  return verified;
}

// Sets with one fault each, which check_known_answers must find.
void seal_wrong_last_byte(const AeadKey& key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes,
                          const uint8_t* plain, size_t bytes, uint8_t* sealed, uint8_t* tag) {
  naive_seal(key, nonce, aad, aad_bytes, plain, bytes, sealed, tag);
  if (bytes > 4096) sealed[bytes - 1] ^= 1;
}
bool open_anything(const AeadKey& key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes,
                   const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void* prefetch) {
  naive_open(key, nonce, aad, aad_bytes, sealed, bytes, tag, plain, prefetch);
  return true;
}
bool open_nothing(const AeadKey&, const uint8_t*, const uint8_t*, size_t, const uint8_t*, size_t, const uint8_t*,
                  uint8_t*, const void*) {
  return false;
}
bool open_short_tag(const AeadKey& key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes,
                    const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void*) {
  uint8_t expected[kTagBytes];
  std::string again(bytes, 0);
  naive_seal(key, nonce, aad, aad_bytes, sealed, bytes, plain, expected);  // counter mode: sealing twice opens
  naive_seal(key, nonce, aad, aad_bytes, plain, bytes, reinterpret_cast<uint8_t*>(&again[0]), expected);
  return std::memcmp(expected, tag, kTagBytes - 1) == 0;  // the last byte is not looked at
}
bool open_ignores_aad(const AeadKey& key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes,
                      const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void* prefetch) {
  if (naive_open(key, nonce, aad, aad_bytes, sealed, bytes, tag, plain, prefetch)) return true;
  for (int bit = 0; aad_bytes > 0 && bit < 8; ++bit) {
    std::string other(reinterpret_cast<const char*>(aad), aad_bytes);
    other.back() = static_cast<char>(other.back() ^ 1 << bit);
    const auto* p = reinterpret_cast<const uint8_t*>(other.data());
    if (naive_open(key, nonce, p, aad_bytes, sealed, bytes, tag, plain, prefetch)) return true;
  }
  return false;
}

constexpr Suite kGcm = Suite::aes_256_gcm;
constexpr AeadKernels kSets[] = {
    {"naive", kGcm, keep, naive_seal, naive_open, nullptr, nullptr},
    {"wrong last byte", kGcm, keep, seal_wrong_last_byte, naive_open, nullptr, nullptr},
    {"opens anything", kGcm, keep, naive_seal, open_anything, nullptr, nullptr},
    {"opens nothing", kGcm, keep, naive_seal, open_nothing, nullptr, nullptr},
    {"short tag", kGcm, keep, naive_seal, open_short_tag, nullptr, nullptr},
    {"ignores aad", kGcm, keep, naive_seal, open_ignores_aad, nullptr, nullptr},
    {"seals otherwise far", kGcm, keep, naive_seal, naive_open, seal_wrong_last_byte, nullptr},
    {"opens anything far", kGcm, keep, naive_seal, naive_open, nullptr, open_anything},
    {"opens nothing far", kGcm, keep, naive_seal, naive_open, nullptr, open_nothing},
    {"another suite", Suite::aegis_256x4, keep, naive_seal, naive_open, nullptr, nullptr},
};

std::atomic<bool> stopped;
std::thread flipper;

void pause_a_little() {
  for (volatile int i = 0; i < 30; i = i + 1) {
  }
}

}  // namespace

extern "C" {

// A set of this library by name, or null.
const AeadKernels* find_set(const char* name) {
#ifndef NO_EMULATION
  for (const AeadKernels* set : {&kEmulated512, &kEmulated512Far, &kAegisEmulated512, &kAegisEmulated512Far}) {
    if (std::strcmp(name, set->name) == 0) return set;
  }
#endif
  for (const AeadKernels& set : kSets) {
    if (std::strcmp(set.name, name) == 0) return &set;
  }
  return nullptr;
}

size_t key_bytes() { return sizeof(AeadKey) + alignof(AeadKey); }

static AeadKey* aligned(void* key) {
  const auto at = reinterpret_cast<uintptr_t>(key);
  return reinterpret_cast<AeadKey*>((at + alignof(AeadKey) - 1) / alignof(AeadKey) * alignof(AeadKey));
}

void set_expand(const AeadKernels* set, void* key, const uint8_t* raw) { set->expand(aligned(key), raw); }

void set_seal(const AeadKernels* set, void* key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes,
              const uint8_t* plain, size_t bytes, uint8_t* sealed) {
  set->seal(*aligned(key), nonce, aad, aad_bytes, plain, bytes, sealed, sealed + bytes);
}

int set_open(const AeadKernels* set, void* key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes,
             const uint8_t* sealed, size_t bytes, uint8_t* plain) {
  return set->open(*aligned(key), nonce, aad, aad_bytes, sealed, bytes, sealed + bytes, plain, nullptr);
}

// Writes what check_known_answers says about a set, or nothing, into `message`.
void known_answers(const AeadKernels* set, char* message, size_t bytes) {
  message[0] = 0;
  try {
    check_known_answers(*set);
  } catch (const std::runtime_error& error) {
    std::strncpy(message, error.what(), bytes - 1);
    message[bytes - 1] = 0;
  }
}

// Until flip_stop: writes `first` and `second` to a byte in turn; only `first`, without a pause, if they are equal.
void flip_start(volatile uint8_t* byte, uint8_t first, uint8_t second) {
  stopped = false;
  flipper = std::thread([=] {
    while (!stopped.load(std::memory_order_relaxed)) {
      *byte = first;
      if (first == second) continue;
      pause_a_little();
      *byte = second;
      pause_a_little();
    }
  });
}

void flip_stop() {
  stopped = true;
  flipper.join();
}

}  // extern "C"
