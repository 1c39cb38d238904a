#include "host/aead.hpp"

#include <cstring>
#include <vector>

#include "host/aead_sets.hpp"
#include "host/cpu.hpp"

namespace securecoll::host {
namespace {

// What this CPU runs, fastest first, checked; and the names of those, ended by null.
struct Sets {
  std::vector<const AeadKernels*> kernels;
  std::vector<const char*> names;

  Sets() {
#if defined(__x86_64__)
    if (cpu().vaes512) kernels.push_back(&kVaes512);
    if (cpu().vaes256) kernels.push_back(&kVaes256);
#endif
    kernels.push_back(&kLibcrypto);
    for (const AeadKernels* set : kernels) {
      check_known_answers(*set);
      names.push_back(set->name);
    }
    names.push_back(nullptr);
  }
};

// When the check throws, the next call checks, and throws, again.
const Sets& sets() {
  static const Sets checked;
  return checked;
}

}  // namespace

const AeadKernels& aead() { return *sets().kernels.front(); }

const AeadKernels* aead_by_name(const char* name) {
  for (const AeadKernels* set : sets().kernels) {
    if (std::strcmp(set->name, name) == 0) return set;
  }
  return nullptr;
}

const char* const* aead_names() { return sets().names.data(); }

}  // namespace securecoll::host
