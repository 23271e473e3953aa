// Environment variables: valid values, and the messages for invalid ones.
#include "lockstep/core/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/core/error.h"
#include "src/core/base/digits.h"

namespace lockstep::env {
namespace {

constexpr const char* kName = "LOCKSTEP_TEST_VARIABLE";

class Environment : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv(kName); }
  static void set(const char* value) { setenv(kName, value, 1); }

  // The message of integer(kName, 0, 100), or "" if it throws nothing.
  static std::string complaint() {
    try {
      integer(kName, 0, 100);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(Environment, UnsetAndEmptyAreTheSame) {
  EXPECT_EQ(text(kName), std::nullopt);
  EXPECT_EQ(integer(kName, 0, 9), std::nullopt);
  set("");
  EXPECT_EQ(text(kName), std::nullopt);
  EXPECT_EQ(integer(kName, 0, 9), std::nullopt);
}

TEST_F(Environment, ReadsTextAndWholeNumbersUpToTheirBounds) {
  set("100");
  EXPECT_EQ(text(kName), "100");
  EXPECT_EQ(integer(kName, 0, 100), 100);
  set("-3");
  EXPECT_EQ(integer(kName, -3, 3), -3);
}

TEST_F(Environment, NamesVariableAndValueOfWhatIsNoNumber) {
  for (const char* value : {"two", "1x", " 1", "1 ", "0x10", "1.5", "99999999999999999999"}) {
    set(value);
    EXPECT_THAT(complaint(), ::testing::HasSubstr(std::string(kName) + "='" + value + "'")) << value;
  }
}

TEST_F(Environment, NamesTheRange) {
  for (const char* value : {"-1", "101"}) {
    set(value);
    EXPECT_THAT(complaint(), ::testing::AllOf(::testing::HasSubstr(std::string(kName) + "=" + value),
                                              ::testing::HasSubstr("0..100")));
  }
}

TEST(Digits, AreDigitsAlone) {
  for (const char* text : {"0", "007", "123456789012345678901234567890"}) EXPECT_TRUE(is_digits(text)) << text;
  for (const char* text : {"", "-1", "+1", "1 ", " 1", "1.0", "0x1", "one", "1\n"})
    EXPECT_FALSE(is_digits(text)) << text;
}

}  // namespace
}  // namespace lockstep::env
