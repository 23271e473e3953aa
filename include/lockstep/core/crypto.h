// SHA-256, HMAC-SHA256 and random bytes, by OpenSSL's libcrypto. For checksums, weight hashes and the job's token.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace lockstep::crypto {

using Digest = std::array<std::byte, 32>;

// SHA-256 of data that arrives in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(std::span<const std::byte> data);
  Digest finish();  // call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest sha256(std::span<const std::byte> data);
Digest hmac_sha256(std::string_view key, std::span<const std::byte> message);
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);
void fill_random(std::span<std::byte> out);  // from the system's generator; throws Error if it fails
std::string hex(std::span<const std::byte> bytes);

}  // namespace lockstep::crypto
#pragma GCC visibility pop
