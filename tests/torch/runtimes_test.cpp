// The runtimes of both libraries meet in one process: two copies of oneDNN, the OpenMP library of each (one, if both
// have GNU's), two versions of fmt. Each convolution gives the bits that it gives alone, also while threads run both.
#include <gtest/gtest.h>
#include <torch/nn/functional/conv.h>

#include <atomic>
#include <thread>

#include "lockstep/core/crypto.h"
#include "tests/architecture/command.h"
#include "tests/torch/our_convolution.h"
#include "tests/torch/torch_ranks.h"

namespace lockstep::testing {
namespace {

std::string hash_of_torchs_convolution() {
  torch::Tensor weight = waves({32, 16, 3, 3}).requires_grad_();
  const torch::Tensor y = torch::nn::functional::conv2d(waves({8, 16, 20, 20}), weight,
                                                        torch::nn::functional::Conv2dFuncOptions().padding(1));
  (y * y).sum().backward();
  crypto::Sha256 hash;
  for (const torch::Tensor& tensor : {y.detach().contiguous(), weight.grad().contiguous()})
    hash.update({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  return crypto::hex(hash.finish());
}

// For a process of its own.
TEST(RuntimesAlone, Torch) { std::printf("hash %s\n", hash_of_torchs_convolution().c_str()); }

std::string printed_hash(const std::string& command) {
  const std::string output = run_command(command).output;
  const std::size_t at = output.find("hash ");
  return at == std::string::npos ? output : output.substr(at + 5, 64);
}

TEST(Runtimes, DoNotDisturbEachOther) {
  const std::string ours = printed_hash(LOCKSTEP_CONVOLUTION_ALONE);
  const std::string theirs =
      printed_hash("/proc/" + std::to_string(getpid()) + "/exe --gtest_filter=RuntimesAlone.Torch");
  ASSERT_EQ(ours.size(), 64u) << ours;
  ASSERT_EQ(theirs.size(), 64u) << theirs;
  EXPECT_EQ(hash_of_our_convolution(), ours);
  EXPECT_EQ(hash_of_torchs_convolution(), theirs);
  EXPECT_EQ(hash_of_our_convolution(), ours) << "after torch's";
  std::atomic<int> different = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 10; ++round)
        different += thread % 2 == 0 ? hash_of_our_convolution() != ours : hash_of_torchs_convolution() != theirs;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
}

// Each library formats its messages with its own fmt.
TEST(Runtimes, FormatMessagesSideBySide) {
  EXPECT_STREQ(Error("{} of {:.2f}", "half", 0.5).what(), "half of 0.50");
  try {
    torch::zeros({2, 3}).matmul(torch::zeros({2, 3}));
    FAIL() << "shapes do not match";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("2x3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::testing
