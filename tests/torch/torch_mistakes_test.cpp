// TorchDdp refuses models, options and changes on all ranks, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/reduce/hooks.h"
#include "tests/torch/torch_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// The failures of wrapping a model that `change` has spoilt on rank 1.
std::vector<std::string> failures_of_wrapping(const std::function<void(TwoHeads&)>& change,
                                              const TorchDdpOptions& options = {}) {
  return run_torch_ranks(2, [&](auto group) {
    TwoHeads model;
    if (group->rank() == 1) change(model);
    torch_ddp(model, group, options);
  });
}

// A device without memory; torch_cuda_test.cpp has those of GPUs.
struct Elsewhere : torch::nn::Module {
  Elsewhere() { register_parameter("weight", torch::empty({2, 2}, torch::kMeta)); }
  torch::Tensor forward(const torch::Tensor& x) { return x; }
};

TEST(TorchMistakes, AModelOnADeviceWithoutSupport) {
  EXPECT_THAT(run_torch_ranks(2,
                              [](auto group) {
                                if (group->rank() == 1) torch_ddp(std::make_shared<Elsewhere>(), group);
                                torch_ddp(TwoHeads(), group);
                              }),
              Each(HasSubstr("TorchDdp: rank 1: parameter 'weight' is on meta, expected the CPU or a CUDA device")));
  EXPECT_THAT(
      failures_of_wrapping([](TwoHeads& model) { model->register_module("more", std::make_shared<Elsewhere>()); }),
      Each(HasSubstr("parameter 'more.weight' is on meta, but 'trunk.weight' is on cpu: move the whole module")));
}

TEST(TorchMistakes, ParametersOfOtherTypesAndLayouts) {
  EXPECT_THAT(failures_of_wrapping(
                  [](TwoHeads& model) { model->register_parameter("phase", torch::zeros({2}, torch::kComplexFloat)); }),
              Each(HasSubstr("parameter 'phase' is complex (ComplexFloat)")));
  EXPECT_THAT(failures_of_wrapping(
                  [](TwoHeads& model) { model->register_parameter("wide", torch::zeros({1}).expand({4}).detach()); }),
              Each(HasSubstr("parameter 'wide' has sizes (4) and strides (0), so that elements overlap")));
  EXPECT_THAT(failures_of_wrapping([](TwoHeads& model) {
                model->register_parameter("few", torch::eye(3).to_sparse(), /*requires_grad=*/false);
              }),
              Each(HasSubstr("parameter 'few' is sparse")));
  EXPECT_THAT(failures_of_wrapping([](TwoHeads& model) {
                model->register_parameter("frozen", torch::zeros({1}).expand({4}), /*requires_grad=*/false);
              }),
              Each(HasSubstr("parameter 'frozen' has sizes (4) and strides (0), so that elements overlap")));
  EXPECT_THAT(
      failures_of_wrapping([](TwoHeads& model) { model->register_buffer("mean", torch::zeros({1}).expand({4})); }),
      Each(HasSubstr("buffer 'mean' has sizes (4) and strides (0), so that elements overlap")));
  EXPECT_THAT(
      failures_of_wrapping([](TwoHeads& model) { model->register_parameter("product", model->right->weight * 2); }),
      Each(HasSubstr("parameter 'product' is computed from other tensors")));
  EXPECT_THAT(failures_of_wrapping([](TwoHeads& model) {
                for (torch::Tensor& parameter : model->parameters()) parameter.requires_grad_(false);
              }),
              Each(HasSubstr("has no parameters that require a gradient")));
  expect_no_failures(run_torch_ranks(2, [](auto group) {  // not trained: any type is sent to all
    TwoHeads model;
    model->register_parameter("count", torch::full({2}, group->rank(), torch::kInt64), /*requires_grad=*/false);
    model->register_buffer("spectrum", torch::full({2}, group->rank(), torch::kComplexFloat));
    torch_ddp(model, group);
    EXPECT_EQ(model->named_parameters()["count"].sum().template item<std::int64_t>(), 0);
    EXPECT_EQ(torch::real(model->named_buffers()["spectrum"]).sum().template item<float>(), 0);
  }));
}

TEST(TorchMistakes, ModelsThatDiffer) {
  EXPECT_THAT(failures_of_wrapping([](TwoHeads& model) { model->register_parameter("more", torch::zeros({2})); }),
              Each(HasSubstr("TorchDdp: the ranks built different models: rank 1 has parameter 'more' Float (2)")));
  EXPECT_THAT(failures_of_wrapping([](TwoHeads& model) { model->to(torch::kFloat64); }),
              Each(HasSubstr("rank 1 has parameter 'trunk.weight' Double (5, 6) at position 0, rank 0 has parameter "
                             "'trunk.weight' Float (5, 6)")));
  EXPECT_THAT(failures_of_wrapping([](TwoHeads& model) { model->left->bias.requires_grad_(false); }),
              Each(HasSubstr("'left.bias' Float (3), frozen")));
}

TEST(TorchMistakes, OptionsThatDifferOrCannotBeCombined) {
  const auto failures = run_torch_ranks(
      2, [](auto group) { torch_ddp(TwoHeads(), group, {.find_unused_parameters = group->rank() == 1}); });
  EXPECT_THAT(failures, Each(HasSubstr("TorchDdp: the ranks have different options: rank 1 has "
                                       "find_unused_parameters true")));
  const auto nothing = [](TwoHeads&) {};
  EXPECT_THAT(failures_of_wrapping(nothing, {.bucket_cap_mb = {}}), Each(HasSubstr("bucket_cap_mb is empty")));
  EXPECT_THAT(failures_of_wrapping(nothing, {.find_unused_parameters = true, .static_graph = true}),
              Each(HasSubstr("set only one of them")));
  EXPECT_THAT(failures_of_wrapping(
                  nothing, {.comm_hook = hooks::top_k(), .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep}),
              Each(HasSubstr("TorchDdp: on_nonfinite_gradient kSkipStep cannot be combined with the comm_hook")));
  EXPECT_THAT(run_torch_ranks(2, [](auto group) { torch_ddp(TwoHeads(), group, {.static_graph = true}).join([] {}); }),
              Each(HasSubstr("TorchDdp::join: not with static_graph")));
  EXPECT_THAT(run_torch_ranks(2,
                              [](auto group) {
                                TwoHeads model;
                                model->to(torch::kFloat64);
                                torch_ddp(model, group).set_weight(2);
                              }),
              Each(HasSubstr("'trunk.weight' is Double")));
}

TEST(TorchMistakes, AModuleThatChangesAfterWrapping) {
  const std::vector<std::pair<std::function<void(TwoHeads&)>, std::string>> changes = {
      {[](TwoHeads& model) { model->register_parameter("late", torch::zeros({1})); }, "'late' was added"},
      {[](TwoHeads& model) { model->register_buffer("statistics", torch::zeros({1})); }, "'statistics' was added"},
      {[](TwoHeads& model) { model->to(torch::kFloat64); }, "'trunk.weight' is Double (5, 6), but was Float (5, 6)"},
      {[](TwoHeads& model) { model->left->bias.requires_grad_(false); }, "'left.bias' was frozen"},
      {[](TwoHeads& model) { model->replace_module("left", torch::nn::Linear(5, 3)); },
       "'left.weight' replaces 'left.weight'"},
      {[](TwoHeads& model) { model->unregister_module("right"); }, "'right.weight' was removed"},
  };
  for (const auto& [change, what] : changes) {
    const auto failures = run_torch_ranks(2, [&change = change](auto group) {
      TwoHeads model;
      auto ddp = torch_ddp(model, group);
      if (group->rank() == 1) change(model);
      ddp(waves({2, 6})).sum().backward();
      group->barrier();
    });
    EXPECT_THAT(failures, Each(HasSubstr("TorchDdp: rank 1: the module changed after it was wrapped: " + what)));
  }
}

struct Words : torch::nn::Module {
  torch::nn::Embedding table{torch::nn::EmbeddingOptions(9, 4).sparse(true)};
  Words() { register_module("table", table); }
  torch::Tensor forward(const torch::Tensor& words) { return table(words); }
};

TEST(TorchMistakes, SparseGradients) {
  const auto failures = run_torch_ranks(2, [](auto group) {
    auto ddp = torch_ddp(std::make_shared<Words>(), group);
    ddp(torch::arange(3)).sum().backward();
  });
  EXPECT_THAT(failures, Each(HasSubstr("the gradient of 'table.weight' is sparse")));
}

TEST(TorchMistakes, ASecondWrapper) {
  const auto failures = run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto first = torch_ddp(model, group);
    auto second = torch_ddp(model, group);
  });
  EXPECT_THAT(failures, Each(HasSubstr("parameter 'trunk.weight' belongs to another TorchDdp")));
}

// Rank 1 skips a backward, and then has another position than rank 0.
TEST(TorchMistakes, ASkippedPass) {
  const auto failures = run_torch_ranks(2, [](auto group) {
    TwoHeads a, b;
    auto first = torch_ddp(a, group), second = torch_ddp(b, group);
    if (group->rank() == 0) first(waves({2, 6})).sum().backward();
    second(waves({2, 6})).sum().backward();
  });
  EXPECT_THAT(failures, Each(HasSubstr("wrapper")));
}

TEST(TorchMistakes, NullArguments) {
  expect_no_failures(run_torch_ranks(1, [](auto group) {
    EXPECT_THROW(torch_ddp(std::shared_ptr<Words>(), group), InvalidArgument);
    EXPECT_THROW(torch_ddp(std::make_shared<Words>(), nullptr), InvalidArgument);
  }));
}

// The exception of a model's own backward passes through, and training goes on with the next step.
TEST(TorchMistakes, AnExceptionOfBackwardEndsItsPassAlone) {
  expect_no_failures(run_torch_ranks(1, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group);
    torch::Tensor x = waves({2, 6}).requires_grad_();
    torch::Tensor y = ddp(x);
    x.register_hook([](const torch::Tensor&) { throw std::runtime_error("no more"); });
    EXPECT_THROW(y.sum().backward(), std::exception);
    model->zero_grad();
    ddp(waves({2, 6})).sum().backward();
    EXPECT_TRUE(model->trunk->weight.grad().defined());
  }));
}

}  // namespace
}  // namespace lockstep::testing
