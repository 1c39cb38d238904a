#include "host/aead.hpp"

#include <cstring>
#include <vector>

#include "host/aead_sets.hpp"
#include "host/cpu.hpp"

namespace securecoll::host {
namespace {

// What this CPU runs of one suite, fastest first, checked; and the names of those, ended by null.
struct Sets {
  std::vector<const AeadKernels*> kernels;
  std::vector<const char*> names;

  explicit Sets(Suite suite) {
    const auto add = [&](const AeadKernels& set) {
      if (set.suite != suite) return;
      check_known_answers(set);
      kernels.push_back(&set);
      names.push_back(set.name);
    };
#if defined(__x86_64__)
    if (cpu().vaes512) add(kVaes512);
    if (cpu().vaes256) add(kVaes256);
    if (cpu().vaes512) add(kAegisVaes512);
    if (cpu().vaes256) add(kAegisVaes256);
    if (cpu().aesni) add(kAegisAesni);
#endif
    add(kLibcrypto);
    names.push_back(nullptr);
  }
};

// When the check throws, the next call checks, and throws, again.
const Sets& sets(Suite suite) {
  static const Sets none(Suite{});
  switch (suite) {
    case Suite::aes_256_gcm: {
      static const Sets gcm(suite);
      return gcm;
    }
    case Suite::aegis_256x4: {
      static const Sets aegis(suite);
      return aegis;
    }
  }
  return none;
}

}  // namespace

const AeadKernels* aead(Suite suite) {
  const Sets& found = sets(suite);
  return found.kernels.empty() ? nullptr : found.kernels.front();
}

const AeadKernels* aead_by_name(const char* name) {
  for (const Suite suite : {Suite::aes_256_gcm, Suite::aegis_256x4}) {
    for (const AeadKernels* set : sets(suite).kernels) {
      if (std::strcmp(set->name, name) == 0) return set;
    }
  }
  return nullptr;
}

const char* const* aead_names(Suite suite) { return sets(suite).names.data(); }

}  // namespace securecoll::host
