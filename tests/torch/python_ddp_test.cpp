// The same weights and batches give the same losses as Python's DistributedDataParallel over Gloo.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/architecture/command.h"
#include "tests/support/temporary.h"
#include "tests/torch/torch_ranks.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

// Both compute the same operations in float32 and add two ranks' gradients in an order that does not matter; the bound
// leaves room for kernels that differ between versions and processors.
constexpr double kRelativeBound = 1e-5;
constexpr int kRanks = 2, kSteps = 20;

std::vector<double> losses_here(const std::shared_ptr<ProcessGroup>& group, const std::string& weights) {
  SmallConv model(5);
  if (group->rank() == 0) {
    std::ofstream file(weights, std::ios::binary);
    for (const torch::Tensor& parameter : model->parameters())
      file.write(static_cast<const char*>(parameter.const_data_ptr()),
                 static_cast<std::streamsize>(parameter.nbytes()));
  }
  auto ddp = torch_ddp(model, group);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const torch::Tensor labels = (torch::arange(6) * 3 + group->rank() + step) % 10;
    const torch::Tensor loss = torch::nn::functional::cross_entropy(ddp(batch_of(*group, step, {6, 3, 4, 4})), labels);
    loss.backward();
    sgd.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(PythonDdp, HasTheSameLosses) {
  const char* const python = std::getenv("LOCKSTEP_TEST_TORCH_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "LOCKSTEP_TEST_TORCH_PYTHON names no Python with PyTorch";
  const std::string folder = temporary("python-ddp"), weights = folder + "/weights";
  fs::create_directories(folder);
  std::vector<std::vector<double>> ours(kRanks);
  expect_no_failures(run_torch_ranks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
    ours[static_cast<std::size_t>(group->rank())] = losses_here(group, weights);
  }));
  const CommandEnd end =
      run_command("env OMP_NUM_THREADS=1 " + std::string(python) + " " LOCKSTEP_PYTHON_DDP " " + weights + " " +
                  folder + " " + std::to_string(kRanks) + " " + std::to_string(kSteps));
  ASSERT_EQ(end.exit_code, 0) << end.output;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ifstream file(folder + "/" + std::to_string(rank));
    const std::vector<double> theirs{std::istream_iterator<double>(file), {}};
    ASSERT_EQ(theirs.size(), static_cast<std::size_t>(kSteps));
    for (std::size_t step = 0; step < theirs.size(); ++step)
      EXPECT_NEAR(ours[static_cast<std::size_t>(rank)][step], theirs[step], kRelativeBound * std::fabs(theirs[step]))
          << "rank " << rank << ", step " << step;
    EXPECT_LT(theirs.back(), theirs.front()) << "it learns";
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
