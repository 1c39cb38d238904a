// The kernel set "libcrypto": any CPU, through EVP.
//
// Stock AES-GCM hashes the output it has just written and may read its input twice. So no pointer to `sealed` ever
// reaches it: ciphertext passes through a private buffer, piece by piece, and each piece is copied once.
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "host/aead_sets.hpp"

namespace securecoll::host {
namespace {

// Small enough to stay in the L1 or L2 cache with the text it belongs to.
constexpr size_t kPiece = 16384;

// Per thread: what lets a record be processed without allocating the buffer. Holds ciphertext only, between records.
struct Worker {
  struct FreeContext {
    void operator()(EVP_CIPHER_CTX* c) const { EVP_CIPHER_CTX_free(c); }
  };
  std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context{EVP_CIPHER_CTX_new()};
  alignas(64) uint8_t staging[kPiece];
};

Worker& worker() {
  thread_local std::unique_ptr<Worker> mine;
  if (!mine) mine = std::make_unique<Worker>();
  return *mine;
}

// Neither the compiler moves an access to memory across, nor does it forward what was stored before to loads after.
inline void barrier() { asm volatile("" ::: "memory"); }

const EVP_CIPHER* aes_256_gcm() {
  static const EVP_CIPHER* cipher = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);  // kept for the process
  return cipher;
}

// libcrypto fails here only without memory or without the cipher. The output is then incomplete, and never used.
void require(bool success) {
  if (!success) throw std::runtime_error("libcrypto cannot run AES-256-GCM: out of memory, or no such cipher here");
}

// A context keyed for one record, which wipes the expanded key at the end.
class Record {
 public:
  Record(EVP_CIPHER_CTX* context, const AeadKey& key, const uint8_t* nonce, const uint8_t* aad, size_t aad_bytes,
         bool seal)
      : context_(context) {
    require(context != nullptr && aes_256_gcm() != nullptr);
    try {
      require(EVP_CipherInit_ex2(context, aes_256_gcm(), key.bytes, nonce, seal ? 1 : 0, nullptr) == 1);
      for (size_t done = 0; done < aad_bytes;) {
        const size_t n = std::min(kPiece, aad_bytes - done);
        update(nullptr, aad + done, n);
        done += n;
      }
    } catch (...) {
      EVP_CIPHER_CTX_reset(context_);
      throw;
    }
  }
  ~Record() { EVP_CIPHER_CTX_reset(context_); }  // cleanses, then frees, the provider's key schedule
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  void update(uint8_t* out, const uint8_t* in, size_t bytes) {
    int written = 0;
    require(EVP_CipherUpdate(context_, out, &written, in, static_cast<int>(bytes)) == 1);
  }
  bool finish() {
    uint8_t nothing[16];
    int written = 0;
    return EVP_CipherFinal_ex(context_, nothing, &written) == 1;
  }
  void tag(int direction, uint8_t value[kTagBytes]) {
    require(EVP_CIPHER_CTX_ctrl(context_, direction, kTagBytes, value) == 1);
  }

 private:
  EVP_CIPHER_CTX* context_;
};

void expand(AeadKey* key, const uint8_t raw[kKeyBytes]) { std::memcpy(key->bytes, raw, kKeyBytes); }

void seal(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
          const uint8_t* plain, size_t bytes, uint8_t* sealed, uint8_t* tag) {
  Worker& w = worker();
  Record record(w.context.get(), key, nonce, aad, aad_bytes, true);
  for (size_t done = 0; done < bytes;) {
    const size_t n = std::min(kPiece, bytes - done);
    record.update(w.staging, plain + done, n);
    barrier();
    std::memcpy(sealed + done, w.staging, n);
    barrier();
    done += n;
  }
  require(record.finish());
  uint8_t value[kTagBytes];
  record.tag(EVP_CTRL_AEAD_GET_TAG, value);
  std::memcpy(tag, value, kTagBytes);
}

bool open(const AeadKey& key, const uint8_t nonce[kNonceBytes], const uint8_t* aad, size_t aad_bytes,
          const uint8_t* sealed, size_t bytes, const uint8_t* tag, uint8_t* plain, const void* prefetch) {
  Worker& w = worker();
  Record record(w.context.get(), key, nonce, aad, aad_bytes, false);
  for (size_t done = 0; done < bytes;) {
    const size_t n = std::min(kPiece, bytes - done);
    if (prefetch != nullptr) {
      for (size_t i = 0; i < n; i += 64) __builtin_prefetch(static_cast<const char*>(prefetch) + done + i, 1, 3);
    }
    std::memcpy(w.staging, sealed + done, n);
    barrier();
    record.update(plain + done, w.staging, n);
    done += n;
  }
  uint8_t value[kTagBytes];
  std::memcpy(value, tag, kTagBytes);
  barrier();
  record.tag(EVP_CTRL_AEAD_SET_TAG, value);
  return record.finish();
}

}  // namespace

const AeadKernels kLibcrypto = {"libcrypto", Suite::aes_256_gcm, expand, seal, open, nullptr, nullptr};

}  // namespace securecoll::host
