// What store clients and the server say to each other. All integers little-endian, as on every machine we run on.
//
// Handshake. Server: Hello. Client: ClientProof. Server: ServerProof, or it closes. A proof is HMAC-SHA256 under the
// job's token over (who, both nonces): each side shows that it knows the token, and neither sends it.
// Then requests and replies take turns: RequestHeader, key, value; ReplyHeader, value.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "lockstep/core/crypto.h"

namespace lockstep::store_protocol {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::array<char, 8> kMagic = {'L', 'O', 'C', 'K', 'S', 'T', 'P', '1'};
inline constexpr std::size_t kMaxKeyBytes = 512;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;

using Nonce = std::array<std::byte, 16>;

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
  std::uint64_t accepted;  // 1, or 0: the token is another one
  crypto::Digest proof;
};

enum class Request : std::uint32_t { kSet = 1, kGet, kAdd, kSetIfAbsent };
enum class Reply : std::uint32_t { kOk = 1, kTimeout, kRefused };  // kRefused: the value says why

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

inline crypto::Digest prove(std::string_view token, std::string_view who, const Nonce& server_nonce, const Nonce& client_nonce) {
  std::array<std::byte, 8 + 2 * sizeof(Nonce)> message{};
  std::memcpy(message.data(), who.data(), who.size() < 8 ? who.size() : 8);
  std::memcpy(message.data() + 8, server_nonce.data(), sizeof(Nonce));
  std::memcpy(message.data() + 8 + sizeof(Nonce), client_nonce.data(), sizeof(Nonce));
  return crypto::hmac_sha256(token, message);
}

}  // namespace lockstep::store_protocol
