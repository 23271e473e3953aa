// The example behaves as its opening comment says, with any number of ranks.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;
using ::testing::SizeIs;

// Returns the mean losses in a text, epoch by epoch; text before "epoch" is ignored.
std::vector<double> losses_in(std::istream& text) {
  std::vector<double> losses;
  for (std::string line; std::getline(text, line);) {
    const std::string expected = "epoch " + std::to_string(losses.size()) + ": mean loss ";
    if (const auto at = line.find(expected); at != std::string::npos)
      losses.push_back(std::stod(line.substr(at + expected.size())));
  }
  return losses;
}

std::vector<double> promised_losses() {
  std::ifstream source(HELLO_DDP_SOURCE);
  return losses_in(source);
}

std::vector<double> printed(const std::vector<std::string>& command) {
  Child example(command);
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
  std::istringstream output(example.output());
  return losses_in(output);
}

class HelloDdp : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void expect_promise(std::vector<std::string> command) {
    command.insert(command.begin(), {"env", "-C", folder_});
    // The order of sums differs between rank counts and CPUs.
    EXPECT_THAT(printed(command), Pointwise(DoubleNear(0.01), promised_losses()));
    const auto sampler = saved_sampler();
    EXPECT_EQ(sampler["epoch"], 5) << "a resumed run must not repeat the last epoch";
    EXPECT_EQ(sampler["consumed"], 0);
    std::filesystem::remove_all(folder_ + "/run");
  }

 private:
  // Returns the sampler's position in the checkpoint that `latest` names.
  nlohmann::json saved_sampler() const {
    const std::string checkpoints = folder_ + "/run/ckpt/";
    std::string name;
    std::ifstream(checkpoints + "latest") >> name;
    std::ifstream state(checkpoints + name + "/state.json");
    EXPECT_TRUE(state.good()) << "no checkpoint in " << checkpoints;
    return nlohmann::json::parse(state, nullptr, /*allow_exceptions=*/false)["sampler"];
  }

  std::string folder_ = ::testing::TempDir() + "hello_ddp-" + std::to_string(::getpid());
};

TEST_F(HelloDdp, KeepsItsPromiseOnOneRank) {
  ASSERT_THAT(promised_losses(), SizeIs(5));
  expect_promise({HELLO_DDP});
}

TEST_F(HelloDdp, KeepsItsPromiseOnSeveralRanks) {
  for (const std::string ranks : {"2", "4"}) {
    SCOPED_TRACE(ranks + " ranks");
    expect_promise({LOCKRUN, "-n", ranks, HELLO_DDP});
  }
}

}  // namespace
}  // namespace lockstep::testing
