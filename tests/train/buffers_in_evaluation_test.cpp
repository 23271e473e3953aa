// Evaluation of models with running statistics: every rank uses rank 0's, which a checkpoint has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/lockstep.h"
#include "tests/ddp/ranks.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train::buffers_in_evaluation {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct Normed : nn::Sequential {
  Normed() {
    manual_seed(5);
    append_named<nn::Linear>("hidden", 2, 16);
    append_named<nn::BatchNorm>("norm", 16, nn::BatchNormLayerOptions{.momentum = 0.5F});
    append_named<nn::Linear>("out", 16, 4);
  }
};

std::vector<NamedTensor> copy_of(const nn::Module& model) {
  std::vector<NamedTensor> copies;
  for (const NamedTensor& entry : model.state_dict()) copies.push_back({entry.name, entry.tensor.clone()});
  return copies;
}

// Collective. Returns the model that one process would have after loading a checkpoint that rank 0 writes now.
std::unique_ptr<nn::Module> as_in_a_checkpoint(const nn::Module& model, ProcessGroup& group) {
  const std::vector<NamedTensor> state = copy_of(model);
  for (const NamedTensor& entry : state)
    group.broadcast(entry.tensor.buffer().data(), static_cast<std::size_t>(entry.tensor.count()), entry.tensor.dtype(),
                    0);
  auto alone = std::make_unique<Normed>();
  alone->load_state_dict(state);
  return alone;
}

std::vector<float> buffers_of(const nn::Module& model) {
  std::vector<float> all;
  for (const NamedTensor& buffer : model.named_buffers())
    all.insert(all.end(), buffer.tensor.span<float>().begin(), buffer.tensor.span<float>().end());
  return all;
}

bool are_equal_on_ranks(const nn::Module& model, ProcessGroup& group) {
  const std::vector<std::string> hashes = group.all_gather_text(hash_of(model.named_buffers()));
  return std::all_of(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash == hashes.front(); });
}

std::unique_ptr<Trainer> made(const std::string& strategy, const Group& group, bool sends_buffers = true) {
  auto trainer = std::make_unique<Trainer>([] { return std::make_unique<Normed>(); });
  CompileOptions options = classifying(strategy);
  options.strategy_options.group = group;
  options.strategy_options.ddp = DistributedDataParallelOptions{.forward_sync_buffers = sends_buffers};
  trainer->compile(options);
  return trainer;
}

const data::Pipeline& points() {
  static const data::Pipeline kPoints = data::Pipeline(Quadrants(96)).cache().shuffle().batch(12);
  return kPoints;
}
data::Pipeline others() { return data::Pipeline(Quadrants(31, 9)).batch(12); }
FitOptions epochs(std::int64_t count, bool validates) {
  FitOptions options{.epochs = count, .progress = false};
  if (validates) options.validation = others();
  return options;
}

struct Scores {
  double loss, accuracy;
};
Scores scores_alone(nn::Module& model) {
  Accuracy accuracy;
  Mean loss(cross_entropy_of_samples);
  evaluate(model, Quadrants(31, 9), {&accuracy, &loss}, {.batch_size = 31});  // without a default group: a job of one
  return {loss.value(), accuracy.value()};
}

TEST(BuffersInEvaluation, ATrainersResultsAreThoseOfTheCheckpointOnOneProcess) {
  for (const char* const strategy : {"ddp", "zero"})
    testing::expect_all_well(testing::run_ranks(3, "threads", [&](const Group& group) {
      const auto trainer = made(strategy, group);
      const History& history = trainer->fit(points(), epochs(2, false));
      EXPECT_FALSE(are_equal_on_ranks(trainer->model(), *group)) << "each rank has seen different samples";
      const auto alone = as_in_a_checkpoint(trainer->model(), *group);
      const Scores expected = scores_alone(*alone);
      const Tensor outputs = trainer->predict(others()), wanted = predict(*alone, Quadrants(31, 9));
      for (std::size_t i = 0; i < wanted.span<float>().size(); ++i)
        ASSERT_NEAR(outputs.span<float>()[i], wanted.span<float>()[i], 1e-5F);

      trainer->fit(points(), epochs(1, false));
      const auto later = as_in_a_checkpoint(trainer->model(), *group);
      const Scores of_later = scores_alone(*later);
      EXPECT_NE(of_later.loss, expected.loss);
      const Logs logs = trainer->evaluate(others());
      EXPECT_NEAR(value_of(logs, "loss", "test"), of_later.loss, 1e-5);
      EXPECT_EQ(value_of(logs, "accuracy", "test"), of_later.accuracy);

      trainer->fit(points(), epochs(1, true));
      EXPECT_NEAR(history.values("val_loss").back(), scores_alone(*as_in_a_checkpoint(trainer->model(), *group)).loss,
                  1e-5);
      EXPECT_TRUE(are_equal_on_ranks(trainer->model(), *group)) << "all continue with rank 0's";
    }));
}

// A custom loop has a module, or a function that uses one.
TEST(BuffersInEvaluation, AreSentForAModuleAndByACallForAFunction) {
  testing::expect_all_well(testing::run_ranks(2, "threads", [](const Group& group) {
    Normed net;
    const auto fill = [&] {
      for (const NamedTensor& buffer : net.named_buffers()) buffer.tensor.fill(1 + static_cast<float>(group->rank()));
    };
    fill();
    Mean mean([](const Tensor& outputs, const Tensor&) {
      return std::vector<float>(static_cast<std::size_t>(outputs.shape()[0]), outputs.span<float>()[0]);
    });
    const Quadrants set(2);
    evaluate(net, set, {&mean}, {.batch_size = 1, .group = group});
    const double expected = mean.value();
    for (const float value : buffers_of(net)) ASSERT_EQ(value, 1) << "rank 0's";
    fill();
    net.eval();
    const auto forward = [&](const Tensor& x) { return net.forward(x); };
    evaluate(forward, set, {&mean}, {.batch_size = 1, .group = group});
    EXPECT_NE(mean.value(), expected) << "the buffers of a function are unknown";
    sync_buffers(net, group);
    evaluate(forward, set, {&mean}, {.batch_size = 1, .group = group});
    EXPECT_EQ(mean.value(), expected);
  }));
}

TEST(BuffersInEvaluation, IgnoredOnesAreNotShared) {
  testing::expect_all_well(testing::run_ranks(2, "threads", [](const Group& group) {
    Normed net;
    const auto own = static_cast<float>(group->rank());
    {
      DistributedDataParallel ddp(net, group, {.ignored_parameters = {"norm.running_mean"}});
      for (const NamedTensor& buffer : net.named_buffers()) buffer.tensor.fill(1 + own);
      sync_buffers(net, group);
      for (const NamedTensor& buffer : net.named_buffers())
        EXPECT_EQ(buffer.tensor.span<float>()[0], buffer.name == "norm.running_mean" ? 1 + own : 1) << buffer.name;
    }
    sync_buffers(net, group);
    for (const float value : buffers_of(net)) ASSERT_EQ(value, 1) << "no wrapper ignores the buffer any more";
  }));
}

// In a stage of model_parallel each layer has statistics over all samples; local_sgd never sends buffers.
class OfStrategiesWithRanks : public ::testing::TestWithParam<const char*> {};

TEST_P(OfStrategiesWithRanks, TheResultIsTheCheckpointsToo) {
  const bool is_local_sgd = std::string(GetParam()) == "local_sgd";
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](const Group& group) {
    const CompileOptions parts = classifying(GetParam());
    const auto strategy = make_strategy(
        GetParam(),
        {.model = [] { return std::make_unique<Normed>(); }, .optimizer = parts.optimizer, .loss = parts.loss},
        {.group = group});
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      auto batches = points().epoch(
          epoch, {.place = is_local_sgd ? group->place() : Place{}, .remainder = data::Remainder::kDrop});
      for (auto& [inputs, targets] : batches) strategy->step(inputs, targets);
    }
    if (auto* const averager = strategy->as<WeightAverager>()) averager->average_weights();
    ASSERT_EQ(are_equal_on_ranks(strategy->model(), *group), !is_local_sgd);
    const Scores expected = scores_alone(*as_in_a_checkpoint(strategy->model(), *group));
    Accuracy accuracy;
    Mean loss(cross_entropy_of_samples);
    evaluate(strategy->model(), Quadrants(31, 9), {&accuracy, &loss}, {.batch_size = 31, .group = group});
    EXPECT_NEAR(loss.value(), expected.loss, 1e-6);
    EXPECT_EQ(accuracy.value(), expected.accuracy);
  }));
}
INSTANTIATE_TEST_SUITE_P(BuffersInEvaluation, OfStrategiesWithRanks, ::testing::Values("local_sgd", "model_parallel"));

TEST(BuffersInEvaluation, OfOneProcessAreThoseOfTheModelThatIsSaved) {
  for (const std::string& strategy : testing::strategies_of_one_process()) {
    Trainer trainer([] { return std::make_unique<Normed>(); });
    trainer.compile(classifying(strategy));
    trainer.fit(points(), epochs(2, false));
    Normed saved;
    saved.load_state_dict(trainer.model().state_dict());
    const Scores expected = scores_alone(saved);
    const Logs logs = trainer.evaluate(others());
    EXPECT_NEAR(value_of(logs, "loss", "test"), expected.loss, 1e-5) << strategy;
    EXPECT_EQ(value_of(logs, "accuracy", "test"), expected.accuracy) << strategy;
  }
}

// The same where forward does not send buffers, so that each rank's own would be used at the end.
TEST(BuffersInEvaluation, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  for (const bool sends_buffers : {true, false}) {
    const testing::Folder folder;
    testing::expect_all_well(testing::run_ranks(2, "threads", [&](const Group& group) {
      const auto straight = made("ddp", group, sends_buffers);
      straight->fit(points(), epochs(4, true));
      const auto first = made("ddp", group, sends_buffers);
      FitOptions half = epochs(2, true);
      half.callbacks = {std::make_shared<ModelCheckpoint>(folder.path())};
      first->fit(points(), half);
      const auto second = made("ddp", group, sends_buffers);
      ASSERT_TRUE(second->load(folder.path()));
      FitOptions rest = epochs(4, true);
      rest.initial_epoch = second->epoch();
      second->fit(points(), rest);
      EXPECT_EQ(values_of(second->model()), values_of(straight->model()));
      EXPECT_EQ(second->history().values("val_loss"), straight->history().values("val_loss"));
    }));
  }
}

}  // namespace
}  // namespace lockstep::train::buffers_in_evaluation
