// SyncBatchNorm: ranks with parts of a batch, of different sizes, normalise and learn like one rank with the entire
// batch.
#include "lockstep/ddp/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/autograd/shapes.h"
#include "lockstep/core/error.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/ddp/step_in_backward.h"
#include "lockstep/ddp/zero.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::int64_t kSamples = 12;

// Samples of each rank: unequal, and one of four has none.
std::vector<std::int64_t> counts_of(int ranks) {
  if (ranks == 1) return {kSamples};
  if (ranks == 2) return {9, 3};
  return {5, 0, 1, 6};
}

// Returns this rank's samples of a batch.
Tensor part_of(const Tensor& whole, const ProcessGroup& group) {
  const std::vector<std::int64_t> counts = counts_of(group.world_size());
  const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0});
  return slice(whole, 0, {.start = begin, .stop = begin + counts[static_cast<std::size_t>(group.rank())]}).clone();
}

Tensor normal(const Shape& shape, float mean, float deviation) {
  const Tensor values = Tensor::empty(shape);
  fill_normal(values, mean, deviation);
  return values;
}

void expect_near(const Tensor& got, const Tensor& expected, const char* what, float tolerance = 2e-5F) {
  ASSERT_EQ(got.shape(), expected.shape()) << what;
  for (std::size_t i = 0; i < got.span<float>().size(); ++i)
    ASSERT_NEAR(got.span<float>()[i], expected.span<float>()[i], tolerance * (1 + std::abs(expected.span<float>()[i])))
        << what << " " << i;
}

struct Pass {
  Tensor x, y, x_grad, weight_grad, bias_grad;
};

Pass pass_of(nn::BatchNorm& norm, const Tensor& x, const Tensor& y_grad) {
  require_grad(x);
  const Tensor y = norm(x);
  y.backward({.gradient = y_grad});
  return {x, y, grad(x), norm.weight.defined() ? grad(norm.weight).clone() : Tensor(),
          norm.bias.defined() ? grad(norm.bias).clone() : Tensor()};
}

using Wire = std::tuple<int, const char*>;
class SyncBatchNorm : public ::testing::TestWithParam<Wire> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  std::vector<std::string> run(const std::function<void(std::shared_ptr<ProcessGroup>)>& body) const {
    return run_ranks(ranks(), std::get<1>(GetParam()), body);
  }
};
INSTANTIATE_TEST_SUITE_P(Wire, SyncBatchNorm,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values("threads", "shm", "tcp")),
                         [](const auto& test) {
                           return std::get<1>(test.param) + std::to_string(std::get<0>(test.param));
                         });

TEST_P(SyncBatchNorm, IsBatchNormOverTheJoinedBatch) {
  for (const Shape& shape : {Shape{kSamples, 5}, Shape{kSamples, 3, 2, 4}})
    for (const nn::BatchNormLayerOptions& options :
         {nn::BatchNormLayerOptions{}, nn::BatchNormLayerOptions{.momentum = 0.7F, .eps = 1e-3F},
          nn::BatchNormLayerOptions{.affine = false}, nn::BatchNormLayerOptions{.activation = Activation::kReLU}}) {
      manual_seed(2);
      const std::int64_t channels = shape[shape.dims() - 1];
      const Tensor x = normal(shape, 30, 4), y_grad = normal(shape, 1, 1);
      const Tensor weight = normal({channels}, 1, 0.5F), bias = normal({channels}, 0, 1);
      const auto prepare = [&](nn::BatchNorm& norm) {
        if (!options.affine) return;
        norm.weight.copy_from(weight);
        norm.bias.copy_from(bias);
      };
      nn::BatchNorm alone(channels, options);
      prepare(alone);
      const Pass expected = pass_of(alone, x.clone(), y_grad);
      expect_all_well(run([&](auto group) {
        nn::SyncBatchNorm norm(channels, group, options);
        prepare(norm);
        const Pass pass = pass_of(norm, part_of(x, *group), part_of(y_grad, *group));
        expect_near(pass.y, part_of(expected.y, *group), "y");
        expect_near(pass.x_grad, part_of(expected.x_grad, *group), "gradient of x");
        expect_near(norm.running_mean, alone.running_mean, "running mean");
        expect_near(norm.running_var, alone.running_var, "running variance");
        check_replicas_equal(*group, norm.named_buffers(), "running statistics");
        if (!options.affine) return;
        for (const auto& [own, all] :
             {std::pair(pass.weight_grad, expected.weight_grad), std::pair(pass.bias_grad, expected.bias_grad)}) {
          group->all_reduce(own.template span<float>());
          expect_near(own, all, "gradient of a parameter", 1e-4F);
        }
      }));
    }
}

TEST_P(SyncBatchNorm, EvaluatesIndependently) {
  manual_seed(2);
  const Tensor x = normal({4, 3}, 1, 2);
  expect_all_well(run([&](auto group) {
    nn::SyncBatchNorm norm(3, group);
    norm(part_of(normal({kSamples, 3}, 1, 2), *group));
    norm.eval();
    group->barrier();
    if (group->rank() != 0) return;
    nn::BatchNorm alone(3);
    alone.load_state_dict(norm.state_dict());
    alone.eval();
    const Tensor got = norm(x), expected = alone(x);
    EXPECT_TRUE(std::equal(got.span<float>().begin(), got.span<float>().end(), expected.span<float>().begin()));
  }));
}

// Convolution-like layers with two norms between them, whose exchanges come between many buckets.
struct Net : nn::Module {
  nn::Linear first{6, 8}, second{8, 8}, out{8, 2};
  nn::BatchNorm norm{8}, last{8, {.activation = Activation::kReLU}};
  bool checkpoints = false;
  Net() {
    add("first", first);
    add("norm", norm);
    add("second", second);
    add("last", last);
    add("out", out);
  }
  Tensor block(const Tensor& x) { return last(second(tanh(norm(first(x))))); }
  Tensor forward(const Tensor& x) override {
    return out(checkpoints ? checkpoint([this](const Tensor& inner) { return block(inner); }, x) : block(x));
  }
};

enum class Stepping { kPlain, kInSlices, kInBackward };

// Returns weights and buffers after some steps over batches of all ranks. Each rank's loss is the sum over its samples
// times ranks / all samples.
std::vector<Tensor> train(Net& net, DistributedDataParallel& ddp, const ProcessGroup& group, int steps,
                          Stepping stepping = Stepping::kPlain) {
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1F, .momentum = 0.9F});
  std::optional<ZeroRedundancyOptimizer> zero;
  std::optional<StepInBackward> in_backward;
  if (stepping == Stepping::kInSlices) zero.emplace(ddp, sgd);
  if (stepping == Stepping::kInBackward) in_backward.emplace(ddp, sgd);
  manual_seed(11);
  for (int step = 0; step < steps; ++step) {
    const Tensor x = part_of(normal({kSamples, 6}, 2, 3), group), target = part_of(normal({kSamples, 2}, 0, 1), group);
    sgd.zero_grad();
    const Tensor difference = ddp(x) - target;
    (sum(difference * difference) * (static_cast<float>(group.world_size()) / kSamples)).backward();
    if (stepping != Stepping::kInBackward) sgd.step();
  }
  std::vector<Tensor> state;
  for (const NamedTensor& entry : net.state_dict()) state.push_back(entry.tensor.clone());
  return state;
}

std::vector<Tensor> train_alone(int steps) {
  std::vector<Tensor> state;
  expect_all_well(run_ranks(1, "shm", [&](auto group) {
    manual_seed(4);
    Net net;
    DistributedDataParallel ddp(net, group);
    state = train(net, ddp, *group, steps);
  }));
  return state;
}

TEST_P(SyncBatchNorm, TrainsAsOneRankWithAllSamples) {
  constexpr int kSteps = 8;
  const std::vector<Tensor> expected = train_alone(kSteps);
  for (const bool checkpoints : {false, true})
    expect_all_well(run([&](auto group) {
      manual_seed(4);
      Net net;
      net.checkpoints = checkpoints;
      EXPECT_EQ(nn::convert_sync_batchnorm(net, group), 2);
      DistributedDataParallel ddp(net, group, {.bucket_cap_mb = {in_mib(64)}, .forward_sync_buffers = false});
      const std::vector<Tensor> state = train(net, ddp, *group, kSteps);
      for (std::size_t i = 0; i < expected.size(); ++i)
        expect_near(state[i], expected[i], net.state_dict()[i].name.c_str(), 2e-3F);
      check_replicas_equal(*group, net.state_dict(), "weights and statistics");
    }));
}

TEST_P(SyncBatchNorm, TrainsWithStepsInSlicesAndInBackward) {
  constexpr int kSteps = 8;
  const std::vector<Tensor> expected = train_alone(kSteps);
  for (const Stepping stepping : {Stepping::kInSlices, Stepping::kInBackward})
    expect_all_well(run([&](auto group) {
      manual_seed(4);
      Net net;
      nn::convert_sync_batchnorm(net, group);
      DistributedDataParallel ddp(net, group, {.bucket_cap_mb = {in_mib(64)}});
      const std::vector<Tensor> state = train(net, ddp, *group, kSteps, stepping);
      for (std::size_t i = 0; i < expected.size(); ++i)
        expect_near(state[i], expected[i], net.state_dict()[i].name.c_str(), 2e-3F);
      check_replicas_equal(*group, net.state_dict(), "weights and statistics");
    }));
}

TEST_P(SyncBatchNorm, In16BitsItMatchesTheJoinedBatchWithinRounding) {
  manual_seed(2);
  const Tensor x = cast(normal({kSamples, 4}, 1, 2), DType::kBFloat16),
               y_grad = cast(normal({kSamples, 4}, 0, 1), DType::kBFloat16);
  nn::BatchNorm alone(4);
  const Pass expected = pass_of(alone, x.clone(), y_grad);
  const auto floats = [](const Tensor& values) { return cast(detach(values), DType::kFloat32); };
  expect_all_well(run([&](auto group) {
    nn::SyncBatchNorm norm(4, group);
    const Pass pass = pass_of(norm, part_of(x, *group), part_of(y_grad, *group));
    expect_near(floats(pass.y), part_of(floats(expected.y), *group), "y", 0.02F);
    expect_near(floats(pass.x_grad), part_of(floats(expected.x_grad), *group), "gradient of x", 0.02F);
  }));
}

// One head per rank. Their buckets come before or after the exchange of the norm below them.
struct HeadPerRank : nn::Module {
  nn::Linear trunk{2, 4}, left{4, 1}, right{4, 1};
  nn::BatchNorm norm{4};
  bool goes_left = true;
  HeadPerRank() {
    add("trunk", trunk);
    add("norm", norm);
    add("left", left);
    add("right", right);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor inner = norm(trunk(x));
    return goes_left ? left(inner) : right(inner);
  }
};

TEST(SyncBatchNormAlone, RanksWithDifferentPathsNeedASeparateGroup) {
  for (const bool own_group : {false, true}) {
    const auto failures = run_ranks(2, "shm", [&](auto group) {
      manual_seed(1);
      HeadPerRank net;
      net.goes_left = group->rank() == 0;
      nn::convert_sync_batchnorm(net, own_group ? group->split(0) : group);
      DistributedDataParallel ddp(net, group, {.bucket_cap_mb = {in_mib(64)}, .find_unused_parameters = true});
      for (int step = 0; step < 3; ++step) {
        for (const NamedTensor& parameter : ddp.parameters()) clear_grad(parameter.tensor);
        sum(ddp(normal({6, 2}, 0, 1))).backward();
        check_replicas_equal(*group, net.named_buffers(), "running statistics");
      }
    });
    if (own_group)
      expect_all_well(failures);
    else
      EXPECT_THAT(failures, Each(AllOf(HasSubstr("the ranks make different calls"), HasSubstr("batch norm gradients"),
                                       HasSubstr("bucket"))));
  }
}

TEST(SyncBatchNormAlone, ARankThatEvaluatesOrFailsAloneIsNamedOnAllRanks) {
  const auto train_with = [](const std::shared_ptr<ProcessGroup>& group, const std::function<void(Net&)>& before) {
    Net net;
    nn::convert_sync_batchnorm(net, group);
    DistributedDataParallel ddp(net, group, {.forward_sync_buffers = false});
    sum(ddp(normal({4, 6}, 0, 1))).backward();
    before(net);
    sum(ddp(normal({4, 6}, 0, 1))).backward();
  };
  EXPECT_THAT(run_ranks(3, "threads",
                        [&](auto group) {
                          train_with(group, [&](Net& net) {
                            if (group->rank() == 1) net.eval();
                          });
                        }),
              Each(AllOf(HasSubstr("the ranks make different calls"), HasSubstr("batch norm statistics"),
                         HasSubstr("rank 1"))));
  EXPECT_THAT(run_ranks(3, "shm",
                        [&](auto group) {
                          train_with(group, [&](Net&) {
                            if (group->rank() == 1) group->abort("the disk of rank 1 is full");
                          });
                        }),
              Each(HasSubstr("the disk of rank 1 is full")));
}

TEST(SyncBatchNormAlone, ABatchOfOneValueIsRefusedOnAllRanks) {
  EXPECT_THAT(run_ranks(2, "threads",
                        [](auto group) {
                          nn::SyncBatchNorm norm(3, group);
                          norm(Tensor::zeros({group->rank(), 3}));
                        }),
              Each(HasSubstr("has 1 values for each channel, but training needs at least 2, on all ranks together")));
}

TEST(SyncBatchNormAlone, ConversionKeepsTheModuleAndItsNames) {
  const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  Net net, same;
  EXPECT_EQ(nn::convert_sync_batchnorm(net, group), 2);
  EXPECT_EQ(nn::convert_sync_batchnorm(net.first, group), 0);
  EXPECT_EQ(net.norm.kind(), "SyncBatchNorm");
  EXPECT_EQ(nn::SyncBatchNorm(3, group, {.affine = false}).extra_repr(),
            nn::BatchNorm(3, {.affine = false}).extra_repr());
  ASSERT_EQ(net.state_dict().size(), same.state_dict().size());
  for (std::size_t i = 0; i < same.state_dict().size(); ++i)
    EXPECT_EQ(net.state_dict()[i].name, same.state_dict()[i].name);
  EXPECT_THAT(message_of([&] { nn::convert_sync_batchnorm(net, nullptr); }),
              HasSubstr("convert_sync_batchnorm: the group is null"));
  EXPECT_THAT(message_of([] { nn::SyncBatchNorm(3, nullptr); }), HasSubstr("SyncBatchNorm: the group is null"));
}

TEST(SyncBatchNormAlone, RefusesUnsupportedCalls) {
  const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  Net net;
  nn::convert_sync_batchnorm(net, group);
  DistributedDataParallel ddp(net, group);
  EXPECT_THAT(message_of([&] { ddp.join([] {}); }), HasSubstr("join: not with SyncBatchNorm"));
  EXPECT_THAT(message_of([&] { ddp.set_weight(3); }), HasSubstr("set_weight: not with SyncBatchNorm"));
  EXPECT_THAT(message_of([&] { ddp.capture([] { return Tensor(); }); }), HasSubstr("capture: SyncBatchNorm"));
}

}  // namespace
}  // namespace lockstep::testing
