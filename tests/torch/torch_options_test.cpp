// Options of TorchDdp beside its averages, and what PyTorch's own functions do with averaged gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/utils/clip_grad.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "tests/torch/torch_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(TorchOptions, IgnoredParametersStayWithTheirRank) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model(group->rank());
    const auto mine = [&] { return torch::full({3}, group->rank() + 1); };
    model->register_buffer("mine", mine());
    model->register_parameter("alias", model->right->weight);
    const torch::Tensor left = model->left->weight.detach().clone(), right = model->right->weight.detach().clone();
    // `alias` is another name of right.weight; no rank reduces either.
    auto ddp = torch_ddp(model, group, {.ignored_parameters = {"left.weight", "left.bias", "mine", "alias"}});
    EXPECT_TRUE(torch::equal(model->left->weight, left)) << "not sent";
    EXPECT_TRUE(torch::equal(model->right->weight, right)) << "not sent";
    EXPECT_EQ(ddp.reducer().gradients().size(), 3u);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      ddp(batch_of(*group, step, {4, 6}), group->rank() == 0, true).sum().backward();
      EXPECT_EQ(model->left->weight.grad().defined(), group->rank() == 0) << "a local gradient";
      expect_same_on_ranks(*group, model->trunk->weight.grad(), "averaged");
      expect_same_on_ranks(*group, model->right->bias.grad(), "averaged");
      EXPECT_TRUE(torch::equal(model->named_buffers()["mine"], mine()));
      // Ignored tensors may change after wrapping.
      model->left->bias.requires_grad_(false);
    }
  }));
}

TEST(TorchOptions, IgnoredParametersMayHaveAnyType) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    if (group->rank() == 1) model->register_parameter("phase", torch::zeros({2}, torch::kComplexFloat));
    if (group->rank() == 0) model->register_buffer("phase", torch::zeros({3}));
    auto ddp = torch_ddp(model, group, {.ignored_parameters = {"phase"}});
    ddp(batch_of(*group, 0, {4, 6})).sum().backward();
    expect_same_on_ranks(*group, model->trunk->weight.grad(), "averaged");
  }));
}

TEST(TorchOptions, RefusesWrongIgnoredParameters) {
  const auto failures_with = [](const std::vector<std::string>& names, bool only_on_rank_1 = false) {
    return run_torch_ranks(2, [&](auto group) {
      TorchDdpOptions options;
      if (!only_on_rank_1 || group->rank() == 1) options.ignored_parameters = names;
      torch_ddp(TwoHeads(), group, options);
    });
  };
  EXPECT_THAT(failures_with({"left"}), Each(HasSubstr("ignored_parameters has 'left', which is not a parameter or "
                                                      "buffer of the module")));
  EXPECT_THAT(failures_with({"left.bias"}, true),
              Each(HasSubstr("have different options: rank 1 has ignored_parameters {left.bias}")));
  EXPECT_THAT(failures_with({"trunk.weight", "trunk.bias", "left.weight", "left.bias", "right.weight", "right.bias"}),
              Each(HasSubstr("no parameters that require a gradient (those in ignored_parameters do not count)")));
}

// Every rank clips the same averages, so that the replicas stay equal.
TEST(TorchOptions, ClippingGivesTheSameOnAllRanks) {
  expect_no_failures(run_torch_ranks(3, [](auto group) {
    SmallConv model;
    auto ddp = torch_ddp(model, group);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      ddp(batch_of(*group, step, {2, 3, 4, 4}) * (group->rank() + 1)).square().sum().backward();
      const double norm = torch::nn::utils::clip_grad_norm_(model->parameters(), /*max_norm=*/0.5);
      EXPECT_GT(norm, 0.5) << "it clips";
      expect_same_on_ranks(*group, torch::tensor({norm}, torch::kFloat64), "norm");
      double sum = 0;
      for (const torch::Tensor& parameter : model->parameters()) {
        expect_same_on_ranks(*group, parameter.grad(), "clipped gradient");
        sum += parameter.grad().to(torch::kFloat64).square().sum().template item<double>();
      }
      EXPECT_NEAR(std::sqrt(sum), 0.5, 1e-4);
      // Clipping scales the gradients where they are, in their buckets.
      EXPECT_EQ(model->parameters()[0].grad().const_data_ptr(), ddp.reducer().slot(0).data());
    }
  }));
}

TEST(TorchOptions, JoinRefusesDouble) {
  const auto failures = run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    model->to(torch::kFloat64);
    torch_ddp(model, group).join([] {});
  });
  EXPECT_THAT(failures, Each(HasSubstr("TorchDdp::join: gradients are scaled in float32, float16 and bfloat16, and "
                                       "'trunk.weight' is Double")));
}

// The child does not touch the group, and the parents go on.
TEST(TorchOptions, RefusesAForkedProcess) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group);
    if (group->rank() == 0) {
      const torch::Tensor x = waves({2, 6});
      int texts[2];
      ASSERT_EQ(pipe(texts), 0);
      const pid_t child = fork();
      if (child == 0) {
        std::string text = "no error";
        try {
          ddp(x);
        } catch (const InvalidArgument& error) {
          text = error.what();
        }
        const auto written = write(texts[1], text.data(), text.size());
        _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
      }
      int status = -1;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
      std::string text(1000, '\0');
      text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read(texts[0], text.data(), text.size()))));
      EXPECT_THAT(text, HasSubstr("TorchDdp: rank 0: process " + std::to_string(getpid()) +
                                  " wrapped the module, and this is process " + std::to_string(child) +
                                  ", which was forked from it"));
      close(texts[0]), close(texts[1]);
    }
    ddp(batch_of(*group, 0, {2, 6})).sum().backward();
    expect_same_on_ranks(*group, model->trunk->weight.grad(), "averaged");
  }));
}

}  // namespace
}  // namespace lockstep::testing
