// The job's token: making one, the file that LOCKSTEP_TOKEN_FILE names, and the proof with which the two sides of a
// connection show each other that they know it without sending it.
//
// Both send a random nonce; each then answers with HMAC-SHA256 under the token over its role, its rank and both nonces.
// A recorded answer does not fit another nonce, the other side, or another kind of connection. The connecting side
// proves first: the accepting side sends nothing made with the token to an unauthenticated peer, which could use it to
// guess weak tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/crypto.h"

namespace lockstep {

inline constexpr std::size_t kTokenBytes = 32;              // of a token that Lockstep makes
inline constexpr std::size_t kTokenText = 2 * kTokenBytes;  // in hexadecimal

std::string fresh_token();

// Logs a warning if every user of the machine can read the token file. Not in a pod, where the cluster chooses the
// mount's mode and there is no other user.
void warn_of_open_token_file();

using Nonce = crypto::Digest;

Nonce make_nonce();

// kLink joins two ranks over TCP, kMemory two ranks of one machine over an abstract socket; a store's client and a
// node's agent connect to the server and the coordinator. A connector's role is odd, its acceptor's the next even
// number.
enum class Role : std::uint32_t {
  kLinkConnector = 1,
  kLinkAcceptor,
  kStoreClient,
  kStoreServer,
  kNodeAgent,
  kNodeCoordinator,
  kMemoryConnector,
  kMemoryAcceptor
};

static_assert(static_cast<std::uint32_t>(Role::kLinkConnector) % 2 == 1 &&
              static_cast<std::uint32_t>(Role::kMemoryAcceptor) == 8);

// The answer of `rank` in `role`. A client of the store is not a rank yet: 0.
crypto::Digest prove(std::string_view token, Role role, const Nonce& connector, const Nonce& acceptor, int rank = 0);
bool is_proven(const crypto::Digest& answer, std::string_view token, Role role, const Nonce& connector,
               const Nonce& acceptor, int rank = 0);

// One side of a connection while both prove that they know the token: send nonce(), pass the peer's to note_peer(),
// then exchange proofs.
class ProofExchange {
 public:
  ProofExchange(std::string_view token, Role own, int rank = 0)
      : token_(token), own_(own), rank_(rank), nonce_(make_nonce()) {}

  const Nonce& nonce() const { return nonce_; }
  void note_peer(const Nonce& nonce, int rank = 0) {
    peers_nonce_ = nonce;
    peers_rank_ = rank;
  }
  // Call these after note_peer(): this side's proof, and whether the peer's is valid.
  crypto::Digest proof() const;
  bool accepts(const crypto::Digest& peers_proof) const;

 private:
  bool connects() const { return static_cast<std::uint32_t>(own_) % 2 == 1; }

  std::string token_;
  Role own_;
  int rank_;
  int peers_rank_ = 0;
  Nonce nonce_, peers_nonce_{};
};

}  // namespace lockstep
