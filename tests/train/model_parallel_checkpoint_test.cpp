// A checkpoint of model_parallel has the optimizers of all stages: a resumed run has the same bits as one that never
// stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;
using Scaler = std::shared_ptr<optim::LossScaler>;

enum class Kind { kSgd, kAdam, kScaled };

// Four layers, three with parameters; stages of two layers have two of the same kind.
Training training_of(Kind kind, int seed, const Scaler& scaler) {
  Training training = training_of_net();
  training.model = [seed] {
    manual_seed(static_cast<std::uint64_t>(seed));
    auto net = std::make_unique<nn::Sequential>();
    net->append<nn::Flatten>();
    net->append<nn::Linear>(72, 8);
    net->append<nn::Linear>(8, 8);
    net->append<nn::Linear>(8, 3);
    return net;
  };
  training.optimizer = [kind, scaler](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    if (kind == Kind::kAdam)
      return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = 0.01F});
    return std::make_unique<optim::SGD>(std::move(parameters),
                                        optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F, .loss_scaler = scaler.get()});
  };
  training.loss = [scaler](const Tensor& outputs, const Tensor& targets) {
    const Tensor loss = nn::cross_entropy(outputs, targets);
    return scaler ? scaler->scale(loss) : loss;
  };
  return training;
}

// A strategy with its scaler.
struct Pipeline {
  Scaler scaler;
  std::unique_ptr<Strategy> strategy;

  Pipeline(Kind kind, int seed, StrategyOptions options, const std::vector<int>& stage_layers,
           const std::string& name = "model_parallel") {
    if (kind == Kind::kScaled)
      scaler = std::make_shared<optim::LossScaler>(optim::LossScalerOptions{.initial = 64, .growth_interval = 3});
    if (name == "model_parallel") options.micro_batches = 4, options.stage_layers = stage_layers;
    strategy = make_strategy(name, training_of(kind, seed, scaler), options);
  }
  void steps(int from, int to) {
    for (int step = from; step < to; ++step) {
      const auto batch = batch_of(step);
      strategy->step(batch.first, batch.second);
    }
  }
  std::vector<float> weights() { return weights_of(strategy->model()); }
  void save(const std::string& folder, const Group& group = nullptr) {
    nn::Module& model = strategy->model();
    save_checkpoint(folder, {.model = model, .optimizer = strategy->optimizer(), .step = 5, .group = group});
    if (group) group->barrier();
  }
  void resume(const std::string& folder, const Group& group = nullptr) {
    nn::Module& model = strategy->model();
    EXPECT_EQ(resume_checkpoint(folder, {.model = model, .optimizer = strategy->optimizer(), .group = group}).step, 5);
  }
};

using Options = std::function<StrategyOptions()>;

void expect_resumes(Kind kind, const Options& options, const Group& group, const std::vector<int>& stage_layers,
                    const std::string& folder) {
  Pipeline whole(kind, 1, options(), stage_layers), first(kind, 1, options(), stage_layers),
      second(kind, 2, options(), stage_layers);
  whole.steps(0, 10);
  first.steps(0, 5);
  first.strategy->set_lr(0.02F);
  first.save(folder, group);
  second.resume(folder, group);
  EXPECT_EQ(second.strategy->optimizer().lr(), 0.02F);
  for (optim::Optimizer* optimizer : second.strategy->optimizers()) EXPECT_EQ(optimizer->lr(), 0.02F);
  first.strategy->set_lr(whole.strategy->optimizer().lr());
  second.strategy->set_lr(whole.strategy->optimizer().lr());
  second.steps(5, 10);
  EXPECT_EQ(second.weights(), whole.weights());
  EXPECT_EQ(whole.scaler ? second.scaler->value() : 0, whole.scaler ? whole.scaler->value() : 0);
}

TEST(ModelParallelCheckpoint, ResumesBitForBitOnDevices) {
  for (const Kind kind : {Kind::kSgd, Kind::kAdam, Kind::kScaled})
    for (const std::vector<int>& layers : {std::vector{2, 2}, {1, 3}, {1, 1, 2}}) {
      const Folder folder;
      expect_resumes(
          kind, [&] { return on_cpus(0, static_cast<int>(layers.size())); }, nullptr, layers, folder.path());
    }
}

TEST(ModelParallelCheckpoint, ResumesBitForBitOverRanks) {
  for (const Kind kind : {Kind::kSgd, Kind::kAdam, Kind::kScaled})
    for (const std::vector<int>& layers : {std::vector{2, 2}, {1, 3}, {2, 1, 1}}) {
      if (kind == Kind::kScaled && layers[0] == 1) continue;  // refused: rank 0 would have nothing to train
      const Folder folder;
      testing::expect_all_well(testing::run_ranks(static_cast<int>(layers.size()), "threads", [&](Group group) {
        expect_resumes(
            kind, [&] { return StrategyOptions{.group = group}; }, group, layers, folder.path());
      }));
    }
}

TEST(ModelParallelCheckpoint, ADeviceContinuesWhereARankStopped) {
  for (const Kind kind : {Kind::kSgd, Kind::kAdam, Kind::kScaled}) {
    const Folder folder;
    testing::expect_all_well(testing::run_ranks(2, "threads", [&](Group group) {
      Pipeline ranks(kind, 1, {.group = group}, {2, 2});
      ranks.steps(0, 5);
      ranks.save(folder.path(), group);
    }));
    Pipeline whole(kind, 1, on_cpus(0, 2), {2, 2}), devices(kind, 2, on_cpus(0, 2), {2, 2});
    whole.steps(0, 10);
    devices.resume(folder.path());
    devices.steps(5, 10);
    EXPECT_EQ(devices.weights(), whole.weights());
  }
}

// State that belongs to parameters fits any layout, and one device; counts of steps belong to a stage.
TEST(ModelParallelCheckpoint, AnotherLayoutIsExactOrRefusedByName) {
  const Folder sgd, adam;
  Pipeline whole(Kind::kSgd, 1, on_cpus(0, 3), {2, 1, 1}), three(Kind::kSgd, 1, on_cpus(0, 3), {2, 1, 1});
  whole.steps(0, 10);
  three.steps(0, 5);
  three.save(sgd.path());
  Pipeline two(Kind::kSgd, 2, on_cpus(0, 2), {2, 2}), one(Kind::kSgd, 2, on_cpus(0, 1), {}, "mirrored");
  two.resume(sgd.path());
  two.steps(5, 10);
  EXPECT_EQ(two.weights(), whole.weights());
  one.resume(sgd.path());
  one.steps(5, 10);
  EXPECT_LT(largest_difference(one.weights(), whole.weights()), 1e-5F);

  Pipeline two_adam(Kind::kAdam, 1, on_cpus(0, 2), {2, 2}), three_adam(Kind::kAdam, 2, on_cpus(0, 3), {2, 1, 1});
  two_adam.steps(0, 5);
  two_adam.save(adam.path());
  EXPECT_THAT(message_of([&] { three_adam.resume(adam.path()); }),
              HasSubstr("'stage1.group0.clock' is float64 (4, 4) there, float64 (2, 4) here"));
}

TEST(ModelParallelCheckpoint, StateHasTheModelsNamesEachOnce) {
  Pipeline run(Kind::kSgd, 1, on_cpus(0, 2), {2, 2});
  std::set<std::string> wanted, names;
  for (const NamedTensor& each : run.strategy->model().named_parameters()) wanted.insert(each.name + ".momentum");
  for (optim::Optimizer* optimizer : run.strategy->optimizers()) {
    names.clear();
    for (const NamedTensor& each : optimizer->state())
      EXPECT_TRUE(names.insert(each.name).second) << each.name << " comes twice";
    EXPECT_EQ(names, wanted) << "whichever optimizer is asked";
  }
}

}  // namespace
}  // namespace lockstep::train
