// Public random bytes: nonces, challenges, names. (Secrets are drawn into the arena: Secret::random.)
#pragma once
#include <cstddef>

namespace securecoll {

// From the kernel's generator. Throws EngineError: config when it has none to give.
void fill_random(void* to, size_t bytes);

}  // namespace securecoll
