// DistributedDataParallel over models whose blocks are activation checkpoints: the same bits, and buckets that start as
// early.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "src/autograd/engine/variable_state.h"
#include "src/comm/testing/delay_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"

namespace lockstep {
namespace {

// Two blocks of 16 x 16 layers. The shared weight is used before, in and after the blocks.
struct Blocks : nn::Module {
  explicit Blocks(bool in_checkpoints) : in_checkpoints_(in_checkpoints) {
    manual_seed(3);
    for (int i = 0; i < 3; ++i) {
      weights.push_back(Tensor::empty({16, 16}));
      fill_uniform(weights.back(), -0.2f, 0.2f);
      add_parameter("weight" + std::to_string(i), weights.back());
    }
    fill_uniform(shared, -0.2f, 0.2f);
    add_parameter("shared", shared);
  }
  Tensor forward(const Tensor& x) override {
    const auto block = [this](const Tensor& input) {
      Tensor y = linear(input, shared, Tensor());
      for (const Tensor& weight : weights) y = linear(y, weight, Tensor(), Activation::kReLU);
      return y;
    };
    const Tensor first = linear(x, shared, Tensor());
    const Tensor y = in_checkpoints_ ? checkpoint(block, checkpoint(block, first)) : block(block(first));
    return linear(y, shared, Tensor());
  }
  std::vector<Tensor> weights;
  Tensor shared = Tensor::empty({16, 16});

 private:
  bool in_checkpoints_;
};

std::string train_blocks(const std::shared_ptr<ProcessGroup>& group, bool in_checkpoints, bool around_the_wrapper) {
  Blocks model(in_checkpoints);
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {testing::in_mib(1024), testing::in_mib(2048)}});
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .momentum = 0.9f});
  for (int step = 0; step < 3; ++step) {
    const Tensor x = Tensor::full({4, 16}, 1 + static_cast<float>(group->rank() + step));
    const Tensor y = around_the_wrapper ? checkpoint([&](const Tensor& input) { return ddp(input); }, x) : ddp(x);
    sgd.zero_grad();
    l2_loss(y).backward();
    sgd.step();
  }
  check_replicas_equal(*group, model.named_parameters(), "weights");
  return hash_of(model.named_parameters());
}

TEST(ActivationCheckpoints, TrainToTheSameBitsOnAllRanks) {
  testing::expect_all_well(testing::run_ranks(2, "shm", [](auto group) {
    const std::string plain = train_blocks(group, false, false);
    EXPECT_EQ(train_blocks(group, true, false), plain);
    EXPECT_EQ(train_blocks(group, true, true), plain) << "a checkpoint around the wrapper, with checkpoints inside";
  }));
}

// Returns how many buckets had been sent when each parameter's gradient became final.
std::vector<std::size_t> issued_at_each_gradient(bool in_checkpoint) {
  auto owned = std::make_unique<DelayBackend>(DelayCost{std::chrono::milliseconds(1), 1000});
  const DelayBackend& wire = *owned;
  const auto group = ProcessGroup::wrap({}, std::move(owned));
  nn::Sequential model;
  for (int i = 0; i < 6; ++i) model.append<nn::Linear>(16, 16, nn::LinearLayerOptions{.bias = false});
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {testing::in_mib(2048), testing::in_mib(2048)}});
  const std::size_t before = wire.events().size();
  std::vector<std::size_t> issued;
  std::vector<HookHandle> hooks;
  for (const Tensor& parameter : model.parameters())
    hooks.push_back(
        register_last_grad_hook(parameter, [&](const Tensor&) { issued.push_back(wire.events().size() - before); }));
  const Tensor x = Tensor::full({4, 16}, 1);
  l2_loss(in_checkpoint ? checkpoint([&](const Tensor& input) { return ddp(input); }, x) : ddp(x)).backward();
  return issued;
}

TEST(ActivationCheckpoints, BucketsAreSentDuringTheSecondRun) {
  EXPECT_EQ(issued_at_each_gradient(false), (std::vector<std::size_t>{0, 1, 1, 2, 2, 3}));
  EXPECT_EQ(issued_at_each_gradient(true), issued_at_each_gradient(false));
}

}  // namespace
}  // namespace lockstep
