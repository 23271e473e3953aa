#include "src/comm/token_proof.h"

#include <cstring>

namespace lockstep {

Nonce make_nonce() {
  Nonce nonce;
  crypto::fill_random(nonce);
  return nonce;
}

crypto::Digest prove(std::string_view token, Role role, const Nonce& connector, const Nonce& acceptor, int rank) {
  constexpr std::string_view kPurpose = "lockstep proof 2";
  std::byte message[kPurpose.size() + 2 * sizeof(std::uint32_t) + 2 * sizeof(Nonce)];
  std::byte* at = message;
  const auto append = [&](const void* data, std::size_t bytes) {
    std::memcpy(at, data, bytes);
    at += bytes;
  };
  const auto role_word = static_cast<std::uint32_t>(role), rank_word = static_cast<std::uint32_t>(rank);
  append(kPurpose.data(), kPurpose.size());
  append(&role_word, sizeof role_word);
  append(&rank_word, sizeof rank_word);
  append(connector.data(), connector.size());
  append(acceptor.data(), acceptor.size());
  return crypto::hmac_sha256(token, message);
}

bool is_proven(const crypto::Digest& answer, std::string_view token, Role role, const Nonce& connector, const Nonce& acceptor, int rank) {
  return crypto::equal_in_constant_time(answer, prove(token, role, connector, acceptor, rank));
}

}  // namespace lockstep
