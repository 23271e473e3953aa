// Two sides of a connection prove to each other that they know the job's token, without saying it.
//
// Both send a random nonce; each then answers with HMAC-SHA256 under the token over who it is and both nonces. A recorded
// answer is of no use against another nonce, and one side's answer is neither the other's nor any other kind of connection's.
// Whoever connects proves first: who accepts says nothing made with the token to a stranger, who could try weak tokens on it.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/crypto.h"

namespace lockstep {

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
