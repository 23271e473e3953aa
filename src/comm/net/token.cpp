#include "src/comm/net/token.h"

#include <sys/stat.h>

#include <array>
#include <cstring>

#include "lockstep/core/environment.h"
#include "lockstep/core/log.h"

namespace lockstep {

std::string fresh_token() {
  std::array<std::byte, kTokenBytes> secret;
  crypto::fill_random(secret);
  return crypto::hex(secret);
}

void warn_of_open_token_file() {
  const auto path = env::text(env::kTokenFile);
  struct stat facts {};
  if (!path || env::text(env::kToken) || env::text("KUBERNETES_SERVICE_HOST") || ::stat(path->c_str(), &facts) != 0)
    return;
  if ((facts.st_mode & S_IROTH) != 0)
    log::warn("{}={} can be read by every user of this machine: chmod 600 it", env::kTokenFile, *path);
}

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

bool is_proven(const crypto::Digest& answer, std::string_view token, Role role, const Nonce& connector,
               const Nonce& acceptor, int rank) {
  return crypto::equal_in_constant_time(answer, prove(token, role, connector, acceptor, rank));
}

crypto::Digest ProofExchange::proof() const {
  return prove(token_, own_, connects() ? nonce_ : peers_nonce_, connects() ? peers_nonce_ : nonce_, rank_);
}

bool ProofExchange::accepts(const crypto::Digest& peers_proof) const {
  const auto role = static_cast<Role>(static_cast<std::uint32_t>(own_) + (connects() ? 1 : -1));
  return is_proven(peers_proof, token_, role, connects() ? nonce_ : peers_nonce_, connects() ? peers_nonce_ : nonce_,
                   peers_rank_);
}

}  // namespace lockstep
