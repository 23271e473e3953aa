// The example prints the output promised in its opening comment, and its own checks hold with any number of ranks.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/examples/promised_output.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ToyDdp : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string run(std::vector<std::string> command) {
    command.insert(command.begin(), {"env", "-C", folder_});
    Child example(command);
    EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
    return example.output();
  }
  const std::string folder_ = ::testing::TempDir() + "toy_ddp-" + std::to_string(::getpid());
};

TEST_F(ToyDdp, PrintsWhatItPromises) {
  const std::string promised = promised_output(TOY_DDP_SOURCE);
  ASSERT_GT(promised.size(), 200u);
  EXPECT_EQ(run({LOCKRUN, "-n", "2", TOY_DDP}), promised);
}

TEST_F(ToyDdp, HoldsOnFourRanksAndOnOne) {
  const std::string four = run({LOCKRUN, "-n", "4", TOY_DDP});
  EXPECT_THAT(four, HasSubstr("[0] all-reduce: 1 + ... + 4 = 10 on each of 4 ranks\n"));
  EXPECT_THAT(four, HasSubstr("all have the mean 2.5, not the sum 10\n"));
  EXPECT_THAT(four,
              HasSubstr("[0] join: rank r has r + 1 batches; all take 4 steps, with gradients 2.5, 2.25, 1.75, 1; "
                        "every weight is 0.375\n"));
  EXPECT_THAT(four, HasSubstr("onto cpu:1\n"));
  EXPECT_THAT(four, Not(HasSubstr("[1]"))) << "only rank 0 prints";
  EXPECT_THAT(run({TOY_DDP}), HasSubstr("all have the mean 1, not the sum 1\n"));
}

}  // namespace
}  // namespace lockstep::testing
