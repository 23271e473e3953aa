// SHA-256 and HMAC against published vectors.
#include "lockstep/core/crypto.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace lockstep::crypto {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Sha256, MatchesFips180) {
  EXPECT_EQ(hex(sha256(bytes_of(""))), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, TakesDataInPieces) {
  Sha256 hash;
  hash.update(bytes_of("a"));
  hash.update(bytes_of(""));
  hash.update(bytes_of("bc"));
  EXPECT_EQ(hash.finish(), sha256(bytes_of("abc")));
}

TEST(Hmac, MatchesRfc4231) {
  EXPECT_EQ(hex(hmac_sha256("Jefe", bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hmac, AcceptsAnEmptyKeyAndAnEmptyMessage) {
  EXPECT_EQ(hex(hmac_sha256("", bytes_of(""))), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(ConstantTimeEquality, ComparesLengthsAndBytes) {
  EXPECT_TRUE(equal_in_constant_time(bytes_of("token"), bytes_of("token")));
  EXPECT_TRUE(equal_in_constant_time(bytes_of(""), bytes_of("")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("token"), bytes_of("tokem")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("token"), bytes_of("toke")));
}

TEST(Random, GivesOtherBytesEachTime) {
  std::array<std::byte, 32> first{}, second{};
  fill_random(first);
  fill_random(second);
  EXPECT_NE(hex(first), hex(second));
  EXPECT_NE(hex(first), std::string(64, '0'));
}

}  // namespace
}  // namespace lockstep::crypto
