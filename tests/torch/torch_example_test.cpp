// examples/libtorch_ddp on two ranks, and its checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/faults/child.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string output_of_example(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {LOCKRUN, "-n", "2", LIBTORCH_DDP};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Child example(command);
  EXPECT_EQ(example.wait(std::chrono::minutes(4)), 0) << example.errors();
  return example.output();
}

TEST(LibtorchExample, TrainsAndContinues) {
  const std::string folder = temporary("libtorch-example");
  EXPECT_THAT(output_of_example({"2", folder}), ContainsRegex("\\[0\\] step 2: loss [0-9.]+\n"));
  const std::string more = output_of_example({"4", folder});
  EXPECT_THAT(more, HasSubstr("step 4: loss"));
  EXPECT_THAT(more, Not(HasSubstr("step 2: loss"))) << "it continues";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
