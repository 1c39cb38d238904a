// Secrets for Python: handles to arena memory, and the few operations of the handshake on them. Python cannot wipe
// its own objects, so no key ever becomes one: nothing here returns the bytes of a secret, except MACs and sealed
// blobs, which are public.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <openssl/evp.h>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "engine/arena.hpp"
#include "engine/kdf.hpp"
#include "engine/memory.hpp"
#include "host/aead.hpp"

namespace nb = nanobind;

namespace {

using securecoll::Arena;
using securecoll::Secret;
using securecoll::host::AeadKernels;
using securecoll::host::AeadKey;
using securecoll::host::Suite;

constexpr size_t kKey = 32;
constexpr size_t kTag = 16;
// Below this a secret could be guessed, and CPython shares one-byte objects, which must not be wiped.
constexpr size_t kLeast = 16;
constexpr size_t kMost = size_t{64} << 10;

void check_size(size_t bytes) {
  if (bytes < kLeast || bytes > kMost) {
    throw nb::value_error(("a secret has " + std::to_string(kLeast) + " to " + std::to_string(kMost) + " bytes, not " +
                           std::to_string(bytes))
                              .c_str());
  }
}

Secret absorb_secret(nb::handle from) {
  char* data;
  size_t size;
  if (PyBytes_CheckExact(from.ptr())) {
    data = PyBytes_AS_STRING(from.ptr());
    size = static_cast<size_t>(PyBytes_GET_SIZE(from.ptr()));
  } else if (PyByteArray_CheckExact(from.ptr())) {
    data = PyByteArray_AS_STRING(from.ptr());
    size = static_cast<size_t>(PyByteArray_GET_SIZE(from.ptr()));
  } else {
    throw nb::type_error("absorb() takes bytes or bytearray");
  }
  check_size(size);
  Secret secret(data, size);
  securecoll::wipe(data, size);
  return secret;
}

Secret random_secret(size_t bytes) {
  check_size(bytes);
  return Secret::random(bytes);
}

// The wrap's nonce: its key is used once.
constexpr uint8_t kNonce[securecoll::kNonceBytes] = {};

// AES-256-GCM. libcrypto's context holds the expanded key on its own heap: before it is freed, it is keyed with zeros.
class OneShotGcm {
 public:
  OneShotGcm(const Secret& key, bool seal) : context_(EVP_CIPHER_CTX_new()) {
    if (key.size() != kKey) throw nb::value_error("the wrapping key must have 32 bytes");
    set_key(key.data(), seal);
  }
  ~OneShotGcm() {
    static constexpr uint8_t kZeros[kKey] = {};
    if (context_ != nullptr) EVP_CipherInit_ex(context_.get(), nullptr, nullptr, kZeros, kZeros, -1);
  }
  OneShotGcm(const OneShotGcm&) = delete;
  OneShotGcm& operator=(const OneShotGcm&) = delete;

  void seal(const nb::bytes& aad, const Secret& plain, uint8_t* sealed) {
    int n = 0;
    uint8_t* const tag = sealed + plain.size();
    require(EVP_CipherUpdate(context_.get(), nullptr, &n, data(aad), static_cast<int>(aad.size())));
    require(EVP_CipherUpdate(context_.get(), sealed, &n, plain.data(), static_cast<int>(plain.size())));
    require(EVP_CipherFinal_ex(context_.get(), tag, &n));
    require(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kTag, tag));
  }

  bool open(const nb::bytes& aad, const uint8_t* sealed, Secret* plain) {
    int n = 0;
    uint8_t tag[kTag];
    std::memcpy(tag, sealed + plain->size(), kTag);
    require(EVP_CipherUpdate(context_.get(), nullptr, &n, data(aad), static_cast<int>(aad.size())));
    require(EVP_CipherUpdate(context_.get(), plain->data(), &n, sealed, static_cast<int>(plain->size())));
    require(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, kTag, tag));
    return EVP_CipherFinal_ex(context_.get(), plain->data() + n, &n) == 1;
  }

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };

  static const uint8_t* data(const nb::bytes& bytes) { return reinterpret_cast<const uint8_t*>(bytes.c_str()); }
  static void require(int ok) {
    if (ok != 1) throw std::runtime_error("libcrypto failed to run AES-256-GCM");
  }
  void set_key(const uint8_t* key, bool seal) {
    require(context_ != nullptr);
    require(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, key, kNonce, seal ? 1 : 0));
  }

  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
};

// AEGIS-256X4, with its key in the arena.
class OneShotAegis {
 public:
  explicit OneShotAegis(const Secret& key) : kernels_(kernels()), key_(sizeof(AeadKey)) {
    if (key.size() != kKey) throw nb::value_error("the wrapping key must have 32 bytes");
    kernels_.expand(reinterpret_cast<AeadKey*>(key_.data()), key.data());
  }

  void seal(const nb::bytes& aad, const Secret& plain, uint8_t* sealed) {
    kernels_.seal(expanded(), kNonce, data(aad), aad.size(), plain.data(), plain.size(), sealed,
                  sealed + plain.size());
  }

  bool open(const nb::bytes& aad, const uint8_t* sealed, Secret* plain) {
    return kernels_.open(expanded(), kNonce, data(aad), aad.size(), sealed, plain->size(), sealed + plain->size(),
                         plain->data(), nullptr);
  }

 private:
  static const AeadKernels& kernels() {
    if (const AeadKernels* found = securecoll::host::aead(Suite::aegis_256x4)) return *found;
    throw nb::value_error("this CPU has no kernels of AEGIS-256X4");
  }
  static const uint8_t* data(const nb::bytes& bytes) { return reinterpret_cast<const uint8_t*>(bytes.c_str()); }
  const AeadKey& expanded() const { return *reinterpret_cast<const AeadKey*>(key_.data()); }

  const AeadKernels& kernels_;
  Secret key_;
};

void check_aad(const nb::bytes& aad) {
  if (aad.size() > kMost) throw nb::value_error("associated data is too long");
}

// Raises for a suite that there is not; whether it is AEGIS-256X4's.
bool is_aegis(uint8_t suite) {
  switch (Suite{suite}) {
    case Suite::aes_256_gcm:
      return false;
    case Suite::aegis_256x4:
      return true;
  }
  throw nb::value_error(("there is no suite " + std::to_string(suite)).c_str());
}

nb::bytes wrap_secret(const Secret& key, const nb::bytes& aad, const Secret& secret, uint8_t suite) {
  check_aad(aad);
  if (secret.size() != kKey) throw nb::value_error("wrap() takes a secret of 32 bytes");
  uint8_t sealed[kKey + kTag];
  if (is_aegis(suite)) {
    OneShotAegis(key).seal(aad, secret, sealed);
  } else {
    OneShotGcm(key, true).seal(aad, secret, sealed);
  }
  return nb::bytes(sealed, sizeof sealed);
}

std::optional<Secret> unwrap_secret(const Secret& key, const nb::bytes& aad, const nb::bytes& blob, uint8_t suite) {
  check_aad(aad);
  Secret plain(kKey);
  const auto opened_by = [&](auto&& cipher) {
    return blob.size() == kKey + kTag && cipher.open(aad, reinterpret_cast<const uint8_t*>(blob.c_str()), &plain);
  };
  if (!(is_aegis(suite) ? opened_by(OneShotAegis(key)) : opened_by(OneShotGcm(key, false)))) return std::nullopt;
  return plain;
}

nb::bytes mac_of(const Secret& key, const nb::bytes& data) {
  uint8_t mac[32];
  securecoll::hmac_sha256(key, data.c_str(), data.size(), mac);
  return nb::bytes(mac, sizeof mac);
}

bool verify_mac(const Secret& key, const nb::bytes& data, const nb::bytes& mac) {
  uint8_t expected[32];
  securecoll::hmac_sha256(key, data.c_str(), data.size(), expected);
  const bool equal =
      mac.size() == sizeof expected && securecoll::equal_constant_time(expected, mac.c_str(), sizeof expected);
  securecoll::wipe(expected, sizeof expected);  // of a refused message, it would be a forgery
  return equal;
}

void refuse(const char* what) { throw nb::type_error(what); }

}  // namespace

void bind_secrets(nb::module_& m) {
  nb::class_<Secret>(m, "Secret", nb::is_final(),
                     "Bytes in the locked arena. A handle: it is never printed, copied, pickled or exported.")
      .def_static(
          "absorb", &absorb_secret, nb::arg("data"), nb::sig("def absorb(data: bytes | bytearray) -> Secret"),
          "Copies 16 to 65536 bytes into the arena, then overwrites `data` itself with zeros, wherever else it "
          "is referenced.")
      .def_static("random", &random_secret, nb::arg("size"), "`size` bytes from the kernel's generator.")
      .def("erase", &Secret::erase, "Wipes it now. Idempotent; later uses raise RuntimeError.")
      .def_prop_ro("size", &Secret::size, "Bytes; 0 once erased.")
      .def_prop_ro("empty", &Secret::empty, "True once erased.")
      .def("__repr__", [](const Secret& s) { return nb::str("<Secret of {} bytes>").format(s.size()); })
      .def("__copy__", [](const Secret&) { refuse("a Secret cannot be copied"); })
      .def("__deepcopy__", [](const Secret&, nb::handle) { refuse("a Secret cannot be copied"); })
      .def("__reduce__", [](const Secret&) { refuse("a Secret cannot be pickled"); })
      .def("__reduce_ex__", [](const Secret&, nb::handle) { refuse("a Secret cannot be pickled"); });

  m.def(
      "hkdf_extract", [](const Secret* salt, const Secret& ikm) { return securecoll::hkdf_extract(salt, ikm); },
      nb::arg("salt").none(), nb::arg("ikm"), "HKDF-Extract with SHA-256 (RFC 5869). No salt means 32 zero bytes.");
  m.def(
      "expand_label",
      [](const Secret& secret, std::string_view label, const nb::bytes& ctx, size_t length) {
        if (label.size() > 255 - 7 || ctx.size() > 255 || length == 0 || length > 255 * 32) {
          throw nb::value_error("expand_label: label, context or length out of range");
        }
        return securecoll::expand_label(secret, label, ctx.c_str(), ctx.size(), length);
      },
      nb::arg("secret"), nb::arg("label"), nb::arg("ctx"), nb::arg("length"), "XL of docs/protocol.md.");
  m.def("hmac_sha256", &mac_of, nb::arg("secret"), nb::arg("data"), "The 32-byte MAC of public `data`.");
  m.def("hmac_verify", &verify_mac, nb::arg("secret"), nb::arg("data"), nb::arg("mac"),
        "Whether `mac` is right, compared in constant time.");
  m.def("wrap", &wrap_secret, nb::arg("key"), nb::arg("aad"), nb::arg("secret"), nb::arg("suite") = 1,
        "Seals a 32-byte secret under a 32-byte key that is used once (the suite's AEAD, nonce 0): 48 bytes.");
  m.def("unwrap", &unwrap_secret, nb::arg("key"), nb::arg("aad"), nb::arg("blob"), nb::arg("suite") = 1,
        "The secret that wrap() sealed, or None where key, associated data, blob or suite are not the same.");
  m.def(
      "arena_used_bytes", [] { return Arena::instance().used_bytes(); }, "Bytes of live secrets, in 64-byte blocks.");
}
