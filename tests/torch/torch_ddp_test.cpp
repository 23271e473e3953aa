// TorchDdp over ranks that are threads: averages, equal replicas, and each option.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include <limits>
#include <tuple>

#include "lockstep/core/error.h"
#include "lockstep/reduce/hooks.h"
#include "tests/torch/torch_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Gradients of one rank's loss, on a copy of the model.
std::vector<torch::Tensor> gradients_alone(const TwoHeads& model, const torch::Tensor& x, bool left = true,
                                           bool right = true) {
  TwoHeads alone;
  const torch::NoGradGuard no_grad;
  const auto from = model->parameters(), to = alone->parameters();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  const torch::AutoGradMode grad(true);
  squares(alone->forward(x, left, right)).backward();
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : alone->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

void expect_averages(const TwoHeads& model, const std::vector<std::vector<torch::Tensor>>& of_ranks) {
  const auto parameters = model->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor sum = torch::zeros_like(parameters[i]);
    for (const auto& gradients : of_ranks)
      if (gradients[i].defined()) sum += gradients[i];
    ASSERT_TRUE(parameters[i].grad().defined()) << i;
    EXPECT_TRUE(torch::allclose(parameters[i].grad(), sum / static_cast<double>(of_ranks.size()), 1e-5, 1e-7)) << i;
  }
}

class TorchDdpOverRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TorchDdpOverRanks, ::testing::Values(1, 2, 3), ::testing::PrintToStringParamName());

// zero_grad() drops gradients or fills them with zeros; both ways lead to the same averages in the buckets.
TEST_P(TorchDdpOverRanks, AveragesGradientsInTheirBuckets) {
  const int ranks = GetParam();
  expect_no_failures(run_torch_ranks(ranks, [ranks](auto group) {
    TwoHeads model(group->rank());  // wrapping replaces all by rank 0's
    auto ddp = torch_ddp(model, group, {.bucket_cap_mb = {0.0001}});
    expect_equal_replicas(*group, *model);
    EXPECT_TRUE(torch::equal(model->trunk->weight, TwoHeads()->trunk->weight));
    EXPECT_GT(ddp.reducer().buckets().size(), 2u);
    for (int step = 0; step < 4; ++step) {
      model->zero_grad(/*set_to_none=*/step % 2 == 0);
      squares(ddp(batch_of(*group, step, {4, 6}))).backward();
      std::vector<std::vector<torch::Tensor>> of_ranks;
      for (int rank = 0; rank < ranks; ++rank)
        of_ranks.push_back(gradients_alone(model, waves({4, 6}, 100.0 * rank + 3.0 * step)));
      expect_averages(model, of_ranks);
      const auto parameters = model->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        EXPECT_EQ(parameters[i].grad().const_data_ptr(), ddp.reducer().slot(i).data()) << i;
    }
  }));
}

TEST_P(TorchDdpOverRanks, KeepsReplicasEqual) {
  expect_no_failures(run_torch_ranks(GetParam(), [](auto group) {
    SmallConv model(group->rank());
    model->to(torch::kCPU);
    auto ddp = torch_ddp(model, group, {.bucket_cap_mb = {0.001, 0.002}});
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < 6; ++step) {
      sgd.zero_grad();
      squares(ddp(batch_of(*group, step, {5, 3, 4, 4}))).backward();
      sgd.step();
      expect_equal_replicas(*group, *model);
    }
    // Rank 0's statistics were sent before each forward, so that after one more they differ only by the last batch.
    ddp(waves({5, 3, 4, 4}));
    expect_same_on_ranks(*group, model->norm->running_mean, "running_mean");
  }));
}

// Its layers are registered in the reverse order of their use.
struct Backwards : torch::nn::Module {
  torch::nn::Linear last{5, 3}, first{6, 5};
  Backwards() {
    register_module("last", last);
    register_module("first", first);
    fill_with_waves(*this, 0);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))); }
};

TEST(TorchDdp, PlansBucketsInTheOrderOfTheFirstPass) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    auto model = std::make_shared<Backwards>();
    auto ddp = torch_ddp(model, group, {.bucket_cap_mb = {0.00003}});
    const auto first_gradient = [&] { return ddp.reducer().buckets().front().slots.front().gradient; };
    EXPECT_GE(first_gradient(), 2u) << "a parameter of `first`, the last that is registered";
    std::vector<torch::Tensor> gradients;
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      squares(ddp(batch_of(*group, 0, {4, 6}))).backward();
      EXPECT_LT(first_gradient(), 2u) << "a parameter of `last`, whose gradient is ready first";
      for (const torch::Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad().clone());
    }
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(torch::equal(gradients[i], gradients[i + 4])) << i;
  }));
}

TEST(TorchDdp, TakesEachTypeAndLayout) {
  for (const auto type : {torch::kFloat64, torch::kFloat16, torch::kBFloat16})
    expect_no_failures(run_torch_ranks(2, [type](auto group) {
      TwoHeads model;
      model->to(type);
      auto ddp = torch_ddp(model, group);
      squares(ddp(torch::full({2, 6}, group->rank() + 1).to(type)).to(torch::kFloat32)).backward();
      EXPECT_EQ(model->trunk->weight.grad().scalar_type(), type);
      EXPECT_GT(model->trunk->weight.grad().abs().sum().item<double>(), 0);
      for (const torch::Tensor& parameter : model->parameters())
        expect_same_on_ranks(*group, parameter.grad(), "gradient");
    }));
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    SmallConv model;
    const torch::Tensor weight = model->conv->weight.detach().to(torch::MemoryFormat::ChannelsLast);
    model->conv->weight.set_data(weight);
    auto ddp = torch_ddp(model, group);
    squares(ddp(batch_of(*group, 0, {2, 3, 4, 4}))).backward();
    EXPECT_EQ(model->conv->weight.grad().strides(), weight.strides());
    expect_same_on_ranks(*group, model->conv->weight.grad(), "gradient");
  }));
}

TEST(TorchDdp, NoSyncAccumulatesLocally) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group);
    const auto x_of = [](int rank, int step) { return waves({4, 6}, 100.0 * rank + 3.0 * step); };
    for (int window = 0; window < 2; ++window) {
      model->zero_grad();
      {
        const auto local = ddp.no_sync();
        // The left head has a gradient of this pass alone.
        squares(ddp(x_of(group->rank(), 0), true, true)).backward();
      }
      const auto alone = gradients_alone(model, x_of(group->rank(), 0));
      EXPECT_TRUE(torch::allclose(model->trunk->weight.grad(), alone[0])) << "not averaged";
      squares(ddp(x_of(group->rank(), 1), false, true)).backward();
      std::vector<std::vector<torch::Tensor>> sums;
      for (int rank = 0; rank < 2; ++rank) {
        auto first = gradients_alone(model, x_of(rank, 0)), second = gradients_alone(model, x_of(rank, 1), false);
        for (std::size_t i = 0; i < first.size(); ++i)
          if (second[i].defined()) first[i] = first[i] + second[i];
        sums.push_back(first);
      }
      expect_averages(model, sums);
    }
  }));
}

TEST(TorchDdp, UnusedParametersNeedAnOption) {
  const auto failures = run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group);
    squares(ddp(waves({4, 6}), true, group->rank() == 0)).backward();
    group->barrier();
  });
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, HasSubstr("TorchDdp: rank 1, step 1: backward did not reach 2 of 6 parameters: "
                                   "'right.weight', 'right.bias'"));
}

TEST(TorchDdp, FindsUnusedParameters) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group, {.find_unused_parameters = true});
    const auto x_of = [](int rank) { return waves({4, 6}, 100.0 * rank); };
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      squares(ddp(x_of(group->rank()), true, group->rank() == 0)).backward();
      expect_averages(model, {gradients_alone(model, x_of(0)), gradients_alone(model, x_of(1), true, false)});
    }
    model->zero_grad();
    squares(ddp(x_of(group->rank()), true, false)).backward();
    EXPECT_FALSE(model->right->weight.grad().defined()) << "no rank used it";
    // A rank whose loss needs no parameter.
    model->zero_grad();
    torch::Tensor y = ddp(x_of(group->rank()));
    if (group->rank() == 1) y = y * 0 + waves({4, 3}).requires_grad_();
    squares(y).backward();
    EXPECT_TRUE(model->right->weight.grad().defined());
    expect_same_on_ranks(*group, model->right->weight.grad(), "gradient");
  }));
}

TEST(TorchDdp, StaticGraphKeepsToItsFirstStep) {
  const auto failures = run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      squares(ddp(batch_of(*group, step, {4, 6}), true, false)).backward();
      EXPECT_FALSE(model->right->weight.grad().defined());
      EXPECT_TRUE(model->left->weight.grad().defined());
    }
    squares(ddp(waves({4, 6}))).backward();
    group->barrier();
  });
  EXPECT_THAT(failures, Each(HasSubstr("unlike in step 1, and static_graph says")));
}

// Rank 1 has one batch, rank 0 three.
TEST(TorchDdp, JoinsRanksWithUnevenData) {
  for (const bool steps_along : {false, true})
    expect_no_failures(run_torch_ranks(2, [steps_along](auto group) {
      SmallConv model;
      auto ddp = torch_ddp(model, group);
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      int steps = 0;
      JoinOptions options;
      if (steps_along) options.after_step = [&] { sgd.step(), ++steps; };
      ddp.join(
          [&] {
            for (int step = 0; step < (group->rank() == 0 ? 3 : 1); ++step, ++steps) {
              sgd.zero_grad();
              squares(ddp(batch_of(*group, step, {2, 3, 4, 4}))).backward();
              sgd.step();
            }
          },
          options);
      EXPECT_EQ(steps, steps_along || group->rank() == 0 ? 3 : 1);
      expect_equal_replicas(*group, *model);
      expect_same_on_ranks(*group, model->norm->running_mean, "running_mean");
      ddp.begin_epoch(1);
      sgd.zero_grad();
      ddp.set_weight(group->rank() + 1);
      squares(ddp(batch_of(*group, 0, {2, 3, 4, 4}))).backward();  // the group goes on
      expect_same_on_ranks(*group, model->conv->weight.grad(), "gradient");
    }));
}

TEST(TorchDdp, AnErrorInsideJoinEndsAllRanks) {
  const auto failures = run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group);
    ddp.join([&] {
      if (group->rank() == 0) throw std::runtime_error("the disk is gone");
    });
  });
  EXPECT_THAT(failures, Each(HasSubstr("the disk is gone")));
}

TEST(TorchDdp, SendsBucketsThroughCommHooks) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads plain, hooked;
    auto averaged = torch_ddp(plain, group);
    auto through_bf16 = torch_ddp(hooked, group, {.comm_hook = hooks::bf16()});
    const torch::Tensor x = batch_of(*group, 0, {4, 6});
    squares(averaged(x)).backward();
    squares(through_bf16(x)).backward();
    const torch::Tensor exact = plain->trunk->weight.grad(), rounded = hooked->trunk->weight.grad();
    EXPECT_FALSE(torch::equal(exact, rounded));
    EXPECT_TRUE(torch::allclose(exact, rounded, /*rtol=*/0.02, /*atol=*/1e-4));
    expect_same_on_ranks(*group, rounded, "gradient");
  }));
}

TEST(TorchDdp, SkipsOrThrowsOnNonfiniteGradients) {
  for (const auto choice : {OnNonfiniteGradient::kSkipStep, OnNonfiniteGradient::kThrow})
    expect_no_failures(run_torch_ranks(2, [choice](auto group) {
      TwoHeads model;
      auto ddp = torch_ddp(model, group, {.on_nonfinite_gradient = choice});
      torch::Tensor x = waves({4, 6});
      if (group->rank() == 1) x[0][0] = std::numeric_limits<float>::quiet_NaN();
      const auto pass = [&] { squares(ddp(x)).backward(); };
      std::string text;
      if (choice == OnNonfiniteGradient::kThrow) {
        try {
          pass();
        } catch (const Error& error) {
          text = error.what();
        }
      } else {
        pass();
        text = ddp.last_skipped();
        EXPECT_EQ(ddp.skipped_steps(), 1);
      }
      EXPECT_THAT(text, HasSubstr("TorchDdp: step 1: gradients are infinite or NaN, on rank 1: 'trunk.weight'"));
      EXPECT_FALSE(model->trunk->weight.grad().defined());
      x = waves({4, 6});
      pass();  // the next step is well
      EXPECT_TRUE(model->trunk->weight.grad().isfinite().all().template item<bool>());
    }));
}

// A gradient that the program made itself is copied into its slot, and is averaged.
TEST(TorchDdp, TakesGradientsThatWereReplaced) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group);
    const torch::Tensor x = batch_of(*group, 0, {4, 6});
    squares(ddp(x)).backward();
    const torch::Tensor before = model->left->bias.grad().clone();
    for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
    squares(ddp(x)).backward();
    EXPECT_TRUE(torch::allclose(model->left->bias.grad(), before + 1, 1e-5, 1e-6));
    EXPECT_EQ(model->left->bias.grad().const_data_ptr(), ddp.reducer().slot(3).data());
  }));
}

// torch::autograd::grad() goes through the outputs as well, and is not a pass.
TEST(TorchDdp, GradientsOfChosenTensorsAreNotReduced) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group);
    if (group->rank() == 0) {
      const torch::Tensor x = waves({4, 6}).requires_grad_();
      EXPECT_EQ(torch::autograd::grad({squares(ddp(x))}, {x})[0].sizes(), x.sizes());
    }
    squares(ddp(batch_of(*group, 0, {4, 6}))).backward();
    expect_same_on_ranks(*group, model->trunk->weight.grad(), "gradient");
  }));
}

struct SeveralResults : torch::nn::Module {
  torch::nn::Linear a{2, 2}, b{2, 2};
  SeveralResults() { register_module("a", a), register_module("b", b); }
  std::tuple<torch::Tensor, std::vector<torch::Tensor>, int> forward(const torch::Tensor& x) {
    return {a(x), {b(x)}, 7};
  }
};

TEST(TorchDdp, ReturnsWhatForwardReturns) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    auto model = std::make_shared<SeveralResults>();
    auto ddp = torch_ddp(model, group, {.find_unused_parameters = true});
    auto [y, more, number] = ddp(waves({3, 2}));
    EXPECT_EQ(number, 7);
    squares(group->rank() == 0 ? y : more[0]).backward();  // ranks may use different outputs
    expect_same_on_ranks(*group, model->a->weight.grad(), "gradient");
    expect_same_on_ranks(*group, model->b->weight.grad(), "gradient");
  }));
}

// Gradients outlive the wrapper, and a second one may follow it.
TEST(TorchDdp, LeavesTheModelUsable) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    torch::Tensor gradient;
    {
      auto ddp = torch_ddp(model, group);
      squares(ddp(batch_of(*group, 0, {4, 6}))).backward();
      gradient = model->trunk->weight.grad();
    }
    EXPECT_TRUE(gradient.isfinite().all().template item<bool>());
    model->zero_grad();
    squares(model(batch_of(*group, 0, {4, 6}))).backward();  // local
    auto again = torch_ddp(model, group);
    model->zero_grad();
    squares(again(batch_of(*group, 0, {4, 6}))).backward();
    EXPECT_TRUE(torch::equal(model->trunk->weight.grad(), gradient));
  }));
}

}  // namespace
}  // namespace lockstep::testing
