#include <algorithm>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/aead_sets.hpp"

namespace securecoll::host {
namespace {

// D. McGrew, J. Viega, "The Galois/Counter Mode of Operation (GCM)", 2005, appendix B, test case 16.
constexpr uint8_t kKey[kKeyBytes] = {0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f,
                                     0x94, 0x67, 0x30, 0x83, 0x08, 0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65,
                                     0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08};
constexpr uint8_t kNonce[kNonceBytes] = {0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce, 0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88};
constexpr uint8_t kAad[20] = {0xfe, 0xed, 0xfa, 0xce, 0xde, 0xad, 0xbe, 0xef, 0xfe, 0xed,
                              0xfa, 0xce, 0xde, 0xad, 0xbe, 0xef, 0xab, 0xad, 0xda, 0xd2};
constexpr uint8_t kPlain[60] = {0xd9, 0x31, 0x32, 0x25, 0xf8, 0x84, 0x06, 0xe5, 0xa5, 0x59, 0x09, 0xc5,
                                0xaf, 0xf5, 0x26, 0x9a, 0x86, 0xa7, 0xa9, 0x53, 0x15, 0x34, 0xf7, 0xda,
                                0x2e, 0x4c, 0x30, 0x3d, 0x8a, 0x31, 0x8a, 0x72, 0x1c, 0x3c, 0x0c, 0x95,
                                0x95, 0x68, 0x09, 0x53, 0x2f, 0xcf, 0x0e, 0x24, 0x49, 0xa6, 0xb5, 0x25,
                                0xb1, 0x6a, 0xed, 0xf5, 0xaa, 0x0d, 0xe6, 0x57, 0xba, 0x63, 0x7b, 0x39};
constexpr uint8_t kSealed[76] = {
    0x52, 0x2d, 0xc1, 0xf0, 0x99, 0x56, 0x7d, 0x07, 0xf4, 0x7f, 0x37, 0xa3, 0x2a, 0x84, 0x42, 0x7d, 0x64, 0x3a, 0x8c,
    0xdc, 0xbf, 0xe5, 0xc0, 0xc9, 0x75, 0x98, 0xa2, 0xbd, 0x25, 0x55, 0xd1, 0xaa, 0x8c, 0xb0, 0x8e, 0x48, 0x59, 0x0d,
    0xbb, 0x3d, 0xa7, 0xb0, 0x8b, 0x10, 0x56, 0x82, 0x88, 0x38, 0xc5, 0xf6, 0x1e, 0x63, 0x93, 0xba, 0x7a, 0x0a, 0xbc,
    0xc9, 0xf6, 0x62, 0x76, 0xfc, 0x6e, 0xce, 0x0f, 0x4e, 0x17, 0x68, 0xcd, 0xdf, 0x88, 0x53, 0xbb, 0x2d, 0x55, 0x1b};

// Lengths at and around the edges of blocks, vectors, groups, updates and hash passes, under the same key and nonce,
// with text(n, 1) and associated data text(n, 2) as below. An answer is the FNV-1a hash of ciphertext || tag, computed
// with another implementation: of AES-256-GCM OpenSSL, through Python's `cryptography`, of AEGIS-256X4 libaegis,
// through `pyaegis`.
struct Case {
  size_t bytes, aad_bytes;
  uint64_t aes_256_gcm, aegis_256x4;
};
constexpr Case kCases[] = {
    {0, 0, 0x0b9312a9cf44bab2, 0xae1c5d3cf7cb1fcf},     {1, 0, 0xfcf55a12e9065382, 0xc6a2e4ff208acb5f},
    {15, 1, 0xb8292283f297ebf9, 0x2c7215ee84ce1bdf},    {16, 16, 0x029b75cad6c711ab, 0xa71cf2ab89d7c7ac},
    {17, 32, 0xecba5de5a3312d3e, 0x38302ee898bdad76},   {31, 33, 0x775aaff5584d05cc, 0x82958d149569364f},
    {33, 5, 0xda3dd2b5dc269eda, 0xf95d7d9c8977574c},    {63, 32, 0x6bed31640cbe33dc, 0x78c0432ae00541fd},
    {64, 32, 0xcfb764854fd4e12e, 0x5b0f92b0c2772e08},   {65, 0, 0x5ecfe4cabff3b425, 0x1fb4699e9cc1f4b2},
    {255, 32, 0x673440625f0384a5, 0x6d84631a4596dd94},  {256, 32, 0xa5d463332665ebdb, 0x6609482c2a87e0b4},
    {257, 700, 0x0ecaca7c9c31138d, 0xde1e678170159235}, {319, 1, 0x8723f6880949bee6, 0xf0dc64b987a7e9c4},
    {320, 32, 0xe36fb2d098bb8f5a, 0x2b56a3f45bc35579},  {321, 13, 0xb4af0b0ffc31387d, 0x746909eb66893a81},
    {511, 32, 0x8cdf52c182eb85e1, 0xbc02922cdac5fd6f},  {512, 32, 0x68dfea7bf2bd683a, 0x2ecd363c7a70944a},
    {513, 48, 0x1d9042a368cdd93e, 0x323ceb7857f175cf},  {639, 32, 0x2163578ea8460966, 0xbf8e639a05d5ffcd},
    {640, 32, 0xc6c01e9d1813b59a, 0x3455f7583fc26046},  {641, 1300, 0xb215bc9af2828e50, 0x3bb9ce260393983c},
    {1023, 7, 0xca29fb2b1558c561, 0xe1a31c88e6596282},  {4096, 32, 0x83ab24f645380c9e, 0x8427cce3513738c1},
    {5003, 29, 0xcebad5530a31c6fe, 0x2e69496ac4bc7c6e}, {20000, 32, 0x07dbf927c7d3b2b4, 0xfbb25d034a5fe616},
};

std::vector<uint8_t> text(size_t n, size_t seed) {
  std::vector<uint8_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(i * i * 7 + i * 13 + seed + (i >> 8));
  return out;
}

uint64_t fnv1a(const std::vector<uint8_t>& bytes) {
  uint64_t h = 0xcbf29ce484222325;
  for (const uint8_t b : bytes) h = (h ^ b) * 0x100000001b3;
  return h;
}

using Bytes = std::vector<uint8_t>;

// Sealed both ways, where there are two; empty where they differ.
Bytes seal(const AeadKernels& set, const AeadKey& key, const Bytes& plain, const Bytes& aad) {
  const size_t n = plain.size();
  Bytes sealed(n + kTagBytes);
  set.seal(key, kNonce, aad.data(), aad.size(), plain.data(), n, sealed.data(), sealed.data() + n);
  if (set.seal_far != nullptr) {
    Bytes room(n + kTagBytes + 64);
    uint8_t* const far = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64);
    set.seal_far(key, kNonce, aad.data(), aad.size(), plain.data(), n, far, far + n);
    if (!std::equal(sealed.begin(), sealed.end(), far)) sealed.clear();
  }
  return sealed;
}

// Whether the set gets `plain` back from `sealed`, at an address `shift` off a multiple of 64, and notices a change of
// any of its parts.
bool opens(decltype(AeadKernels::open) open, const AeadKey& key, const Bytes& plain, const Bytes& aad,
           const Bytes& sealed, size_t shift) {
  const size_t n = plain.size();
  Bytes room(n + 128);
  uint8_t* const opened = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) + shift;
  const auto verifies = [&](const Bytes& record, const Bytes& with) {
    return open(key, kNonce, with.data(), with.size(), record.data(), n, record.data() + n, opened, nullptr);
  };
  if (!verifies(sealed, aad) || !std::equal(plain.begin(), plain.end(), opened)) return false;
  for (const size_t at : {size_t{0}, n / 2, n, n + kTagBytes - 1}) {
    Bytes altered = sealed;
    altered[at] ^= 0x80;
    if (verifies(altered, aad)) return false;
  }
  Bytes altered = aad;
  altered.push_back(0);
  if (verifies(sealed, altered)) return false;
  if (aad.empty()) return true;
  altered = aad;
  altered.back() ^= 1;
  return !verifies(sealed, altered);
}

bool opens(const AeadKernels& set, const AeadKey& key, const Bytes& plain, const Bytes& aad, const Bytes& sealed) {
  if (!opens(set.open, key, plain, aad, sealed, 0)) return false;
  for (const size_t shift : {0, 16, 1}) {
    if (set.open_far != nullptr && !opens(set.open_far, key, plain, aad, sealed, shift)) return false;
  }
  return true;
}

}  // namespace

void check_known_answers(const AeadKernels& set) {
  AeadKey key;
  set.expand(&key, kKey);
  const bool is_gcm = set.suite == Suite::aes_256_gcm;
  bool good = true;
  if (is_gcm) {
    const Bytes plain(std::begin(kPlain), std::end(kPlain)), aad(std::begin(kAad), std::end(kAad));
    const Bytes sealed(std::begin(kSealed), std::end(kSealed));
    good = seal(set, key, plain, aad) == sealed && opens(set, key, plain, aad, sealed);
  }
  for (const Case& c : kCases) {
    const Bytes longer = text(c.bytes, 1), with = text(c.aad_bytes, 2);
    const Bytes answer = seal(set, key, longer, with);
    const uint64_t expected = is_gcm ? c.aes_256_gcm : c.aegis_256x4;
    good = good && fnv1a(answer) == expected && opens(set, key, longer, with, answer);
  }
  if (!good) {
    throw std::runtime_error(std::string(is_gcm ? "AES-256-GCM" : "AEGIS-256X4") + " kernels \"" + set.name +
                             "\" give wrong answers: the build or the CPU is broken. Run the test suite on this "
                             "machine, or reinstall securecoll");
  }
}

}  // namespace securecoll::host
