// A short text that identifies a list, for samplers' states.
#pragma once

#include <span>
#include <string>

#include "lockstep/core/crypto.h"

namespace lockstep::data {

// Returns the first 64 bits of the values' SHA-256.
template <typename T> std::string fingerprint(std::span<const T> values) {
  const crypto::Digest digest = crypto::sha256(std::as_bytes(values));
  return crypto::hex(std::span(digest).first(8));
}

}  // namespace lockstep::data
