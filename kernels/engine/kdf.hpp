// Key derivation on secrets in the arena: HKDF-SHA-256 (RFC 5869) and HMAC-SHA-256, through libcrypto.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/arena.hpp"

namespace securecoll {

// HKDF-Extract; `salt` null means 32 zero bytes.
Secret hkdf_extract(const Secret* salt, const Secret& ikm);

// XL(S, label, ctx, L) = HKDF-Expand(S, u16 L || u8 len || "scoll1 " || label || u8 len || ctx, L); see
// docs/protocol.md.
Secret expand_label(const Secret& secret, std::string_view label, const void* ctx, size_t ctx_bytes, size_t length);

void hmac_sha256(const Secret& key, const void* data, size_t bytes, uint8_t out[32]);
void sha256(const void* data, size_t bytes, uint8_t out[32]);

// True when equal; the time taken does not depend on the contents.
bool equal_constant_time(const void* a, const void* b, size_t bytes) noexcept;

}  // namespace securecoll
