// The job's token: how one is made, the file that LOCKSTEP_TOKEN_FILE names, and how the two sides of a connection prove to
// each other that they know it, without saying it.
//
// Both send a random nonce; each then answers with HMAC-SHA256 under the token over who it is and both nonces. A recorded
// answer is of no use against another nonce, and one side's answer is neither the other's nor any other kind of connection's.
// Whoever connects proves first: who accepts says nothing made with the token to a stranger, who could try weak tokens on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/crypto.h"

namespace lockstep {

inline constexpr std::size_t kTokenBytes = 32;              // of a token that Lockstep makes
inline constexpr std::size_t kTokenText = 2 * kTokenBytes;  // which is written in hexadecimal

std::string fresh_token();

// A secret that every user of the machine can read is none: says so, in the log. Not in a pod, where the mount's mode is the
// cluster's choice and nobody else is there.
void warn_of_open_token_file();

using Nonce = crypto::Digest;

Nonce make_nonce();

// A link joins two ranks over TCP, memory two of one machine over an abstract socket; guests are the lockruns that come to node 0's, the
// host.
enum class Role : std::uint32_t {
  kLinkConnector = 1,
  kLinkAcceptor,
  kStoreClient,
  kStoreServer,
  kNodeGuest,
  kNodeHost,
  kMemoryConnector,
  kMemoryAcceptor
};

// The answer of `rank`, which plays `role`. To the store a client is not yet a rank: 0.
crypto::Digest prove(std::string_view token, Role role, const Nonce& connector, const Nonce& acceptor, int rank = 0);
bool is_proven(const crypto::Digest& answer, std::string_view token, Role role, const Nonce& connector, const Nonce& acceptor,
               int rank = 0);

}  // namespace lockstep
