// Ranks that are threads of this process, and the models that they train. As users' programs, the tests have the shared
// libraries alone.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch.h"
#include "src/comm/store/memory_store.h"

namespace lockstep::testing {

// Runs the function as each rank. Returns each rank's exception text, "" for success.
inline std::vector<std::string> run_torch_ranks(int ranks,
                                                const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
  using namespace std::chrono_literals;
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(ProcessGroup::create({rank, ranks, rank, ranks}, store, "token",
                                  {.backend = "host", .timeout = 60s, .store_timeout = 60s}));
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

inline void expect_no_failures(const std::vector<std::string>& failures) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) EXPECT_EQ(failures[rank], "") << "rank " << rank;
}

// The same values in every process and thread: sin of first, first + 1, ...
inline torch::Tensor waves(at::IntArrayRef sizes, double first = 0) {
  const std::int64_t count = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(count, torch::kFloat64) * 0.7 + first).to(torch::kFloat32).reshape(sizes);
}

inline void fill_with_waves(torch::nn::Module& module, double first) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : module.parameters())
    parameter.copy_(waves(parameter.sizes(), first++) / std::sqrt(static_cast<double>(parameter.numel())));
}

// A trunk and two heads, of which a forward may use one.
struct TwoHeadsImpl : torch::nn::Module {
  torch::nn::Linear trunk{6, 5}, left{5, 3}, right{5, 3};
  explicit TwoHeadsImpl(double first = 0) {
    register_module("trunk", trunk);
    register_module("left", left);
    register_module("right", right);
    fill_with_waves(*this, first);
  }
  torch::Tensor forward(const torch::Tensor& x, bool use_left = true, bool use_right = true) {
    const torch::Tensor hidden = torch::tanh(trunk(x));
    torch::Tensor y = torch::zeros({x.size(0), 3}, x.options());
    if (use_left) y = y + left(hidden);
    if (use_right) y = y + right(hidden);
    return y;
  }
};
TORCH_MODULE(TwoHeads);

// With running statistics, and a layout that is not row-major if `channels_last`.
struct SmallConvImpl : torch::nn::Module {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 8, 3).padding(1)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Linear out{8 * 4 * 4, 10};
  explicit SmallConvImpl(double first = 0) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("out", out);
    fill_with_waves(*this, first);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(norm(conv(x))).flatten(1)); }
};
TORCH_MODULE(SmallConv);

// A batch of this rank in one step.
inline torch::Tensor batch_of(const ProcessGroup& group, int step, at::IntArrayRef sizes) {
  return waves(sizes, 100.0 * group.rank() + 3.0 * step);
}

inline torch::Tensor squares(const torch::Tensor& y) { return (y * y).mean(); }

// All ranks have the same bits.
inline void expect_same_on_ranks(ProcessGroup& group, const torch::Tensor& tensor, const std::string& what) {
  const torch::Tensor own = tensor.detach().contiguous();
  std::vector<std::uint8_t> all(own.nbytes() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(own.const_data_ptr(), all.data(), own.nbytes(), DType::kUInt8);
  for (int rank = 1; rank < group.world_size(); ++rank)
    EXPECT_TRUE(std::equal(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(own.nbytes()),
                           all.begin() + static_cast<std::ptrdiff_t>(own.nbytes()) * rank))
        << what << " of rank " << rank;
}

inline void expect_equal_replicas(ProcessGroup& group, const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters())
    expect_same_on_ranks(group, parameter.value(), parameter.key());
}

}  // namespace lockstep::testing
