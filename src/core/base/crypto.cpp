#include "lockstep/core/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "lockstep/core/error.h"

namespace lockstep::crypto {

namespace {
unsigned char* bytes_of(std::byte* data) { return reinterpret_cast<unsigned char*>(data); }
const unsigned char* bytes_of(const std::byte* data) { return reinterpret_cast<const unsigned char*>(data); }
}  // namespace

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr || EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1)
    throw Error("crypto: SHA-256 could not be started");
}
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> data) {
  if (EVP_DigestUpdate(state_->context, data.data(), data.size()) != 1) throw Error("crypto: SHA-256 failed");
}

Digest Sha256::finish() {
  Digest digest;
  if (EVP_DigestFinal_ex(state_->context, bytes_of(digest.data()), nullptr) != 1) throw Error("crypto: SHA-256 failed");
  return digest;
}

Digest sha256(std::span<const std::byte> data) {
  Sha256 hash;
  hash.update(data);
  return hash.finish();
}

Digest hmac_sha256(std::string_view key, std::span<const std::byte> message) {
  Digest digest;
  unsigned int length = 0;
  // HMAC() interprets a null key as "the previous one", so an empty key must still be a pointer.
  const char* key_data = key.empty() ? "" : key.data();
  if (HMAC(EVP_sha256(), key_data, static_cast<int>(key.size()), bytes_of(message.data()), message.size(),
           bytes_of(digest.data()), &length) == nullptr ||
      length != digest.size())
    throw Error("crypto: HMAC-SHA256 failed");
  return digest;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::byte> out) {
  if (RAND_bytes(bytes_of(out.data()), static_cast<int>(out.size())) != 1)
    throw Error("crypto: the system gave no random bytes");
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte value : bytes) {
    text += kDigits[std::to_integer<unsigned>(value) >> 4];
    text += kDigits[std::to_integer<unsigned>(value) & 15];
  }
  return text;
}

}  // namespace lockstep::crypto
