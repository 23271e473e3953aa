// A build without PCRE2 or utf8proc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/data/tokenizer.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

TEST(TokenizersMissing, SayWhichPackagesToInstall) {
  const TestFile file("{}", "tokenizer.json");
  const std::string message = message_of([&] { Tokenizer{file.path()}; });
  EXPECT_THAT(message, ::testing::HasSubstr(file.path() + ": this build of Lockstep cannot read tokenizer.json"));
  EXPECT_THAT(message, ::testing::HasSubstr("libpcre2-dev and libutf8proc-dev"));
}

}  // namespace
}  // namespace lockstep::data
