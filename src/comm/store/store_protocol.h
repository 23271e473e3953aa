// The protocol between the store's clients and its server. All integers are little-endian, as on every machine that we
// support.
//
// Handshake: the server sends Hello, the client ClientProof, and the server ServerProof or closes the connection. The
// proofs are those of token.h; the client is the connector.
// Then requests and replies alternate: RequestHeader, key, value; ReplyHeader, value.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/comm/net/token.h"

namespace lockstep::store_protocol {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::array<char, 8> kMagic = {'L', 'O', 'C', 'K', 'S', 'T', 'P', '3'};
inline constexpr std::size_t kMaxKeyBytes = 512;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;

struct Hello {
  std::array<char, 8> magic;
  Nonce server_nonce;
};
struct ClientProof {
  std::array<char, 8> magic;
  Nonce client_nonce;
  crypto::Digest proof;
};
struct ServerProof {
  std::uint64_t accepted;  // 1, or 0: the token differs
  crypto::Digest proof;
};

// kGet: the value is a prefix of the claims that must stand, or empty. kEraseBelow, kCheckClaims: the key is a prefix.
enum class Request : std::uint32_t {
  kSet = 1,
  kGet,
  kAdd,
  kSetIfAbsent,
  kEraseBelow,
  kClaim,
  kKeep,
  kAbandon,
  kCheckClaims
};
// kRefused: the value is the reason. kAbandoned: it is the abandoned claim's value.
enum class Reply : std::uint32_t { kOk = 1, kTimeout, kRefused, kAbandoned };

struct RequestHeader {
  Request request;
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;
  std::uint32_t timeout_ms;  // kGet
};
struct ReplyHeader {
  Reply reply;
  std::uint32_t value_bytes;
};

}  // namespace lockstep::store_protocol
