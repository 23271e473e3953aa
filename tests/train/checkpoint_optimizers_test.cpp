// A run that is saved and resumed has the same bits as one that never stopped: with every optimizer, with groups, and
// with averaged weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "lockstep/core/error.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/ema.h"
#include "lockstep/train/safetensors.h"
#include "src/train/files/safetensors.h"
#include "tests/ddp/ranks.h"
#include "tests/optim/every_optimizer.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<NamedTensor>)>;

struct Trainer {
  Trainer(const MakeOptimizer& make, std::uint64_t seed) : net((manual_seed(seed), 3)) {
    std::vector<NamedTensor> weights = net.named_parameters(), biases;
    for (const NamedTensor& parameter : weights)
      if (parameter.tensor.shape().dims() == 1) biases.push_back(parameter);
    std::erase_if(weights, [](const NamedTensor& parameter) { return parameter.tensor.shape().dims() == 1; });
    optimizer = make(weights);
    optimizer->add_group({.parameters = biases, .lr_factor = 2, .weight_decay = 0});
  }
  void train(std::int64_t begin, std::int64_t end) {
    for (std::int64_t step = begin; step < end; ++step) {
      optimizer->zero_grad();
      manual_seed(static_cast<std::uint64_t>(step));
      const Tensor x = Tensor::empty({4, 2});
      fill_uniform(x, -1, 1);
      l2_loss(net(x)).backward();
      optimizer->set_lr(0.01F + 0.001F * static_cast<float>(step));
      optimizer->step();
      ema.update();
    }
  }
  CheckpointParts parts(std::int64_t step = 0) {
    return {.model = net, .optimizer = *optimizer, .ema = ema, .step = step};
  }
  std::string hash() { return hash_of(net.named_parameters()) + hash_of(optimizer->state()) + hash_of(ema.state()); }

  CheckpointNet net;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::ExponentialMovingAverage ema{net.named_parameters()};
};

template <typename T> MakeOptimizer make() {
  return [](std::vector<NamedTensor> parameters) { return std::make_unique<T>(std::move(parameters)); };
}

TEST(CheckpointOptimizers, AResumedRunIsTheOneThatNeverStopped) {
  for (const optim::OptimizerCase& each : optim::every_optimizer()) {
    const MakeOptimizer make_one = [&](std::vector<NamedTensor> parameters) {
      return each.make(std::move(parameters), nullptr);
    };
    const testing::Folder folder;
    Trainer whole(make_one, 1), before(make_one, 1), after(make_one, 2);
    SCOPED_TRACE(whole.optimizer->kind());
    whole.train(0, 8);
    before.train(0, 5);
    save_checkpoint(folder.path(), before.parts(5));
    EXPECT_EQ(resume_checkpoint(folder.path(), after.parts()).step, 5);
    EXPECT_EQ(after.hash(), before.hash());
    EXPECT_EQ(after.optimizer->group_lr(1), before.optimizer->group_lr(1));
    after.train(5, 8);
    EXPECT_EQ(after.hash(), whole.hash());
  }
}

// Older versions saved one count of steps for each group.
TEST(CheckpointOptimizers, ACountOfAGroupIsThatOfEachOfItsParameters) {
  const testing::Folder folder;
  Trainer whole(make<optim::Adam>(), 1), before(make<optim::Adam>(), 1), after(make<optim::Adam>(), 2);
  whole.train(0, 8);
  before.train(0, 5);
  const std::string written = save_checkpoint(folder.path(), before.parts(5));
  const std::map<std::string, std::string> metadata = [&] {
    const ReadFile file = read_file(written + "/optimizer.safetensors");
    return parse_safetensors(file.data, written).metadata;
  }();
  const auto rewrite = [&](std::int64_t values) {
    std::vector<NamedTensor> state = before.optimizer->state();
    for (auto& [name, tensor] : state)
      if (name.find(".clock") != name.npos) {
        EXPECT_EQ(tensor.shape(), (Shape{2, 4})) << name;
        tensor = Tensor::from<double>(tensor.span<double>().first(static_cast<std::size_t>(values)), {values});
      }
    std::filesystem::remove(written + "/optimizer.safetensors");
    save_safetensors(written + "/optimizer.safetensors", state, metadata);
    testing::put_right(folder, written, testing::read_json(written + "/manifest.json"));
  };
  rewrite(3);
  EXPECT_THROW(load_checkpoint(folder.path(), after.parts()), FileError) << "no clock at all";
  rewrite(4);
  EXPECT_EQ(resume_checkpoint(folder.path(), after.parts()).step, 5);
  EXPECT_EQ(after.hash(), before.hash());
  after.train(5, 8);
  EXPECT_EQ(after.hash(), whole.hash());
}

TEST(CheckpointOptimizers, OfAnotherKindAndWithoutAveragesAreRefused) {
  const testing::Folder folder;
  Trainer adam(make<optim::Adam>(), 1), adamw(make<optim::AdamW>(), 2);
  CheckpointParts parts = adam.parts(1);
  parts.ema = {};
  save_checkpoint(folder.path(), parts);
  const std::string before = adamw.hash();
  EXPECT_THROW(load_checkpoint(folder.path(), adamw.parts()), FileError) << "its state has the same names";
  EXPECT_THROW(load_checkpoint(folder.path(), adam.parts()), FileError) << "no averages";
  EXPECT_EQ(adamw.hash(), before) << "a refused load changes nothing";
  EXPECT_TRUE(load_checkpoint(folder.path(), parts).has_value());
}

// One rank differs from the others, which fit the file: all ranks throw before anything is changed.
TEST(CheckpointOptimizers, OfOneRankThatDiffersEndAllRanks) {
  const testing::Folder folder;
  Trainer saved(make<optim::Adam>(), 1);
  save_checkpoint(folder.path(), saved.parts(5));
  const auto refused = [&](int odd, const std::function<void(CheckpointParts&, Trainer&)>& change,
                           const std::string& reason) {
    const auto failures = testing::run_ranks(3, "shm", [&](auto group) {
      const bool is_odd = group->rank() == odd;
      Trainer run(make<optim::Adam>(), 2), other(make<optim::SGD>(), 2);
      CheckpointParts parts = run.parts();
      parts.group = group;
      if (is_odd) change(parts, other);
      const std::string before = run.hash();
      try {
        load_checkpoint(folder.path(), parts);
      } catch (const MismatchError&) {
        EXPECT_EQ(run.hash(), before) << "rank " << group->rank();
        throw;
      }
    });
    EXPECT_THAT(failures,
                ::testing::Each(::testing::HasSubstr("load_checkpoint: the ranks gave different parts: " + reason)));
  };
  refused(
      1, [](CheckpointParts& parts, Trainer& other) { parts.optimizer = *other.optimizer; },
      "rank 1 has optimizer SGD at position 0, rank 0 has optimizer Adam");
  refused(
      2, [](CheckpointParts& parts, Trainer&) { parts.optimizer = {}; }, "rank 2 has no optimizer");
  refused(
      1, [](CheckpointParts& parts, Trainer&) { parts.ema = {}; }, "rank 1 has no averages");
  refused(
      0, [](CheckpointParts& parts, Trainer&) { parts.ema = {}; }, "rank 1 has averages at position");
  data::DistributedSampler sampler(20, {});
  refused(
      2, [&](CheckpointParts& parts, Trainer&) { parts.sampler = sampler; },
      "rank 2 has a sampler of 20 samples for 1 ranks");
}

}  // namespace
}  // namespace lockstep::train
