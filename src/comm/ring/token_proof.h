// Two ranks prove to each other that they know the job's token, without saying it.
//
// Both sides send a random nonce; each then answers with HMAC(token, role, both nonces, who speaks). A recorded answer is
// of no use against another nonce, and one side's answer is not the other's.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/crypto.h"

namespace lockstep::ring {

using Nonce = crypto::Digest;

Nonce make_nonce();

enum class Role : std::uint32_t { kConnector = 1, kAcceptor = 2 };

// The answer of `rank`, which plays `role`.
crypto::Digest prove(std::string_view token, Role role, const Nonce& connector, const Nonce& acceptor, int rank);
bool is_proven(const crypto::Digest& answer, std::string_view token, Role role, const Nonce& connector, const Nonce& acceptor, int rank);

}  // namespace lockstep::ring
