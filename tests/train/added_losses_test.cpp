// Losses of modules and losses that see their model: every strategy trains them as a loop over one device does.
#include "lockstep/nn/added_losses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/ddp_outcome.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;
using Scaler = std::shared_ptr<optim::LossScaler>;

constexpr float kDecay = 0.05F;

// A layer that adds a penalty of its weights and one of its outputs.
struct PenalizedLinear : nn::Module {
  nn::Linear linear;
  const bool adds;
  PenalizedLinear(std::int64_t in, std::int64_t out, bool adds_losses) : linear(in, out), adds(adds_losses) {
    add("linear", linear);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor y = linear(x);
    if (adds) nn::add_loss(kDecay * l2_loss(linear.weight), "hidden/weight_loss");
    if (adds) nn::add_loss(0.1F * mean(y * y), "hidden/activity");
    return y;
  }
};

std::unique_ptr<nn::Sequential> penalized_net(bool adds = true) {
  manual_seed(7);
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Flatten>();
  net->append_named<PenalizedLinear>("hidden", 72, 8, adds);
  net->append<nn::Tanh>();
  net->append_named<nn::Linear>("out", 8, 3);
  return net;
}

Training penalized_training(const Scaler& scaler = nullptr) {
  Training training = training_of_net();
  training.model = [] { return penalized_net(); };
  training.optimizer = [scaler](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::SGD>(std::move(parameters),
                                        optim::SGDOptions{.lr = 0.1F, .loss_scaler = scaler.get()});
  };
  training.loss = [scaler](const Tensor& outputs, const Tensor& targets) {
    const Tensor loss = nn::cross_entropy(outputs, targets);
    return scaler ? scaler->scale(loss) : loss;
  };
  return training;
}

// The same weight penalty in the loss, which sees the model.
Training training_with_decay_in_loss() {
  Training training = penalized_training();
  training.model = [] { return penalized_net(false); };
  training.loss = [](nn::Module& model, const Tensor& outputs, const Tensor& targets) {
    Tensor loss = nn::cross_entropy(outputs, targets);
    for (const auto& [name, tensor] : model.named_parameters())
      if (name == "hidden.linear.weight") loss = loss + kDecay * l2_loss(tensor);
    return loss;
  };
  return training;
}

// A loop without a strategy, on one device: what every strategy is compared with.
Outcome train_by_hand(const Training& training) {
  const auto net = training.model();
  const auto optimizer = training.optimizer(net->named_parameters());
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = batch_of(step);
    optimizer->zero_grad();
    nn::AddedLosses added;
    const Tensor outputs = (*net)(batch.first);
    const Tensor loss = added.total(training.loss(*net, outputs, batch.second));
    loss.backward();
    optimizer->step();
    outcome.last_loss = loss.item();
    if (step == 0) outcome.first_loss = outcome.last_loss;
  }
  outcome.weights = weights_of(*net);
  return outcome;
}

void expect_like(const Outcome& expected, const std::vector<float>& weights, float last_loss, const std::string& what) {
  EXPECT_LT(largest_difference(expected.weights, weights), 1e-5F) << what;
  EXPECT_NEAR(expected.last_loss, last_loss, 1e-4F) << what;
}

void run_and_compare(const Outcome& expected, const std::string& name, const Training& training,
                     const StrategyOptions& options) {
  const auto strategy = make_strategy(name, training, options);
  float loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = batch_of(step);
    loss = strategy->step(batch.first, batch.second);
  }
  expect_like(expected, weights_of(strategy->model()), loss, name);
}

std::vector<std::string> one_process_strategies(bool with_stages) {
  std::vector<std::string> names;
  for (const StrategyKind& kind : strategies())
    if (!kind.capabilities.has_ranks && (with_stages || !kind.capabilities.has_stages)) names.emplace_back(kind.name);
  return names;
}
std::vector<std::string> rank_strategies(bool with_stages) {
  std::vector<std::string> names;
  for (const StrategyKind& kind : strategies())
    if ((kind.capabilities.has_ranks && !kind.capabilities.has_servers) ||
        (with_stages && kind.capabilities.has_stages))
      names.emplace_back(kind.name);
  return names;
}

void run_on_ranks(const Outcome& expected, int ranks, const std::string& name, const Training& training) {
  testing::expect_all_well(testing::run_ranks(ranks, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const bool has_stages = strategy_named(name).capabilities.has_stages;
    StrategyOptions options{.group = group};
    if (name == "local_sgd") options.average_period = 1;  // SGD without momentum: averages of weights are ddp's
    const auto strategy = make_strategy(name, training, options);
    float loss = 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto batch = batch_of(step);
      loss = has_stages ? strategy->step(batch.first, batch.second) : step_on_own_samples(*strategy, *group, step);
    }
    if (!has_stages) group->all_reduce(std::span(&loss, 1), ReduceOp::kAvg);
    const std::vector<float> weights = weights_of(strategy->model());
    expect_like(expected, weights, loss, fmt::format("{} on {} ranks", name, ranks));
  }));
}

TEST(AddedLosses, TrainAlikeUnderEveryStrategy) {
  const Training training = penalized_training();
  const Outcome expected = train_by_hand(training);
  Training plain = training;
  plain.model = [] { return penalized_net(false); };
  EXPECT_GT(largest_difference(expected.weights, train_by_hand(plain).weights), 0.01F) << "the penalties matter";
  for (const std::string& name : one_process_strategies(/*with_stages=*/true))
    for (const int devices : {1, 2, 3}) run_and_compare(expected, name, training, on_cpus(0, devices));
  for (const std::string& name : rank_strategies(/*with_stages=*/true))
    for (const int ranks : {1, 2, 3}) run_on_ranks(expected, ranks, name, training);
}

TEST(LossFunction, SeesTheModelUnderEveryStrategyThatHasItOnOneDevice) {
  const Training training = training_with_decay_in_loss();
  ASSERT_TRUE(training.loss.sees_model());
  const Outcome expected = train_by_hand(training);
  for (const std::string& name : one_process_strategies(/*with_stages=*/false))
    for (const int devices : {1, 2, 3}) run_and_compare(expected, name, training, on_cpus(0, devices));
  for (const std::string& name : rank_strategies(/*with_stages=*/false))
    for (const int ranks : {1, 3}) run_on_ranks(expected, ranks, name, training);
  EXPECT_THAT(message_of([&] { make_strategy("model_parallel", training, on_cpus(0, 2)); }),
              HasSubstr("let the layers add their penalties by nn::add_loss()"));
}

TEST(LossFunction, TakesTheLossesByName) {
  Training training = penalized_training();
  training.loss = nn::cross_entropy;
  run_and_compare(train_by_hand(training), "towers", training, on_cpus(0, 2));
}

TEST(AddedLosses, AreScaledWithTheLoss) {
  const Outcome expected = train_by_hand(penalized_training());
  for (const std::string& name : one_process_strategies(/*with_stages=*/true)) {
    const auto scaler = std::make_shared<optim::LossScaler>(optim::LossScalerOptions{.initial = 64});
    const auto strategy = make_strategy(name, penalized_training(scaler), on_cpus(0, 2));
    for (int step = 0; step < kSteps; ++step) {
      const auto batch = batch_of(step);
      strategy->step(batch.first, batch.second);
    }
    EXPECT_LT(largest_difference(expected.weights, weights_of(strategy->model())), 1e-5F) << name;
    EXPECT_EQ(scaler->skipped_steps(), 0) << name;
  }
}

TEST(AddedLosses, AreListedAfterAStep) {
  for (const std::string& name : one_process_strategies(/*with_stages=*/true)) {
    const auto strategy = make_strategy(name, penalized_training(), on_cpus(0, 2));
    EXPECT_TRUE(strategy->step_losses().empty()) << name;
    const auto batch = batch_of(0);
    strategy->step(batch.first, batch.second);
    const std::vector<NamedLoss> losses = strategy->step_losses();
    ASSERT_EQ(losses.size(), 4u) << name;
    EXPECT_EQ(losses[0].name, "loss");
    EXPECT_EQ(losses[1].name, "hidden/weight_loss");
    EXPECT_EQ(losses[2].name, "hidden/activity");
    EXPECT_EQ(losses[3].name, "total_loss");
    EXPECT_NEAR(losses[0].value + losses[1].value + losses[2].value, losses[3].value, 1e-5F) << name;
    EXPECT_NEAR(losses[1].value, kDecay * l2_loss(penalized_net()->named_parameters()[0].tensor).item(), 1e-5F) << name;
    const auto alone = make_strategy(name, penalized_training(), on_cpus(0, 1));
    const float total = alone->step(batch.first, batch.second);  // before its losses are read
    EXPECT_NEAR(total, alone->step_losses().back().value, 1e-6F) << name;
  }
}

TEST(AddedLosses, TrainerCountsThemInTrainingAndEvaluation) {
  const auto sum_of_squares = [](nn::Module& model) {
    return kDecay * l2_loss(model.named_parameters()[0].tensor).item();
  };
  for (const std::string& name : one_process_strategies(/*with_stages=*/false)) {
    Trainer trainer([] { return penalized_net(); });
    const Training training = penalized_training();
    trainer.compile({.optimizer = training.optimizer,
                     .loss = [](const Tensor& outputs, const Tensor&) { return 0.0F * mean(outputs); },
                     .strategy = name,
                     .strategy_options = on_cpus(0, 2)});
    const auto batch = batch_of(0);
    const data::TensorDataset set({batch.first, batch.second});
    const double before = value_of(trainer.evaluate(data::Pipeline(set).batch(4)), "loss", "test");
    const float weights = sum_of_squares(trainer.model());
    EXPECT_GT(before, weights);  // and the penalty of the outputs
    trainer.fit(data::Pipeline(set).batch(kBatch), {.epochs = 2, .progress = false});
    EXPECT_NEAR(trainer.history().values("loss")[0], before, 1e-4);
    EXPECT_LT(sum_of_squares(trainer.model()), weights) << "the penalty was trained";
  }
}

TEST(AddedLosses, RefuseWhatWouldBeLost) {
  const auto net = penalized_net();
  const Tensor x = batch_of(0).first;
  EXPECT_THAT(message_of([&] { (*net)(x); }), HasSubstr("make an nn::AddedLosses before the forward"));
  {
    const NoGrad no_grad;
    EXPECT_EQ((*net)(x).shape(), Shape({kBatch, 3}));
  }
  const nn::AddedLosses added;
  EXPECT_FALSE(added.sum().defined());
  EXPECT_THAT(message_of([&] { checkpoint([&](const Tensor& input) { return (*net)(input); }, x); }),
              HasSubstr("in a function of checkpoint()"));
  EXPECT_THAT(message_of([&] { nn::add_loss(x, "all"); }), HasSubstr("expected a float32 scalar"));
  EXPECT_THAT(message_of([&] { nn::add_loss(Tensor(), "none"); }), HasSubstr("an undefined tensor"));
  {
    const nn::AddedLosses inner;
    (*net)(x);
    EXPECT_EQ(inner.all().size(), 2u);
  }
  EXPECT_TRUE(added.empty()) << "the innermost collects";
  nn::add_loss(Tensor::full({1}, 2));
  EXPECT_EQ(added.total(Tensor::full({}, 1)).item(), 3);
}

}  // namespace
}  // namespace lockstep::train
