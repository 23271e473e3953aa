// One rank of a training with all the state that a training can have, which continues from its checkpoint:
//
//   resume_rank loop=own|trainer|servers folder=DIR losses=FILE epochs=4 save_every=5 pause_ms=2 background=1
//     preempt=1 hold=FILE
//
// Dropout, augmentation, a loader with workers, Adam with a schedule and a LossScaler, averages of the weights, and a
// hook that sends the largest gradients and keeps the rest, which differs from rank to rank; once by
// DistributedDataParallel, once by a Trainer. loop=servers is a Trainer over parameter servers, which have no
// LossScaler and no hook. The last step is not made while the file `hold` exists. Rank 0 appends "STEP LOSS" to
// `losses` in each step, with all bits of the loss. At the end each rank prints "weights HASH", of the weights and
// their averages; rank 0 of a Trainer also its history.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/faults/rank_arguments.h"

namespace {

namespace ls = lockstep;
using ls::testing::RankArguments;

constexpr std::int64_t kInputs = 16, kClasses = 4, kSamples = 84, kBatch = 12;  // a batch of all ranks

// Each epoch sees other noise on the samples.
class NoisySamples : public ls::data::Dataset {
 public:
  std::int64_t size() const override { return kSamples; }
  ls::data::Sample get(std::int64_t index, std::int64_t epoch) const override {
    ls::Philox sample(/*seed=*/5, static_cast<std::uint64_t>(index)),
        noise(/*seed=*/6, static_cast<std::uint64_t>(epoch * kSamples + index));
    std::vector<float> inputs(kInputs);
    for (float& input : inputs) input = sample.uniform(-1.F, 1.F);
    const std::int64_t label = (inputs[0] > 0 ? 1 : 0) + (inputs[1] > 0 ? 2 : 0);
    for (float& input : inputs) input += noise.uniform(-0.2F, 0.2F);
    return {ls::Tensor::from<float>(inputs, {kInputs}), ls::data::scalar<std::int64_t>(label)};
  }
};

std::unique_ptr<ls::nn::Module> make_net() {
  ls::manual_seed(11);
  auto net = std::make_unique<ls::nn::Sequential>();
  net->append<ls::nn::Linear>(kInputs, 32, ls::nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
  net->append<ls::nn::Dropout>(0.25F);
  net->append<ls::nn::Linear>(32, kClasses);
  return net;
}

ls::DistributedDataParallelOptions ddp_options() { return {.comm_hook = ls::hooks::top_k({.ratio = 0.2})}; }

std::unique_ptr<ls::optim::Adam> make_adam(std::vector<ls::NamedTensor> parameters, ls::optim::LossScaler* scaler) {
  return std::make_unique<ls::optim::Adam>(std::move(parameters),
                                           ls::optim::AdamOptions{.lr = 0.01F, .loss_scaler = scaler});
}
ls::optim::LossScalerOptions scaling() { return {.initial = 1024, .growth_interval = 7}; }
float rate_of(std::int64_t step) { return 0.01F / static_cast<float>(1 + step % 9); }

class Records {
 public:
  Records(const RankArguments& arguments, bool is_first)
      : arguments_(arguments), last_(arguments.number("epochs", 4) * kSamples / kBatch) {
    if (is_first && !arguments.text("losses").empty()) losses_.open(arguments.text("losses"), std::ios::app);
  }
  void note(std::int64_t step, float loss) {
    losses_ << fmt::format("{} {:a}\n", step, loss) << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(arguments_.number("pause_ms", 0)));
    if (step + 1 == last_) ls::testing::wait_while_held(arguments_);
  }

 private:
  RankArguments arguments_;
  std::int64_t last_;
  std::ofstream losses_;
};

ls::train::SaveOptions saving(const RankArguments& arguments) {
  return {.background = arguments.number("background", 0) != 0, .on_error = ls::train::OnSaveError::kStop};
}

void print_weights(ls::nn::Module& net, ls::optim::ExponentialMovingAverage& averages) {
  std::vector<ls::NamedTensor> all = net.named_parameters();
  for (const ls::NamedTensor& average : averages.state()) all.push_back(average);
  fmt::print("weights {}\n", ls::hash_of(all));
}

int train_in_own_loop(const RankArguments& arguments) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const NoisySamples samples;
  const auto net = make_net();
  ls::DistributedDataParallel ddp(*net, group, ddp_options());
  ls::optim::LossScaler scaler(scaling());
  const auto adam = make_adam(ddp.parameters(), &scaler);
  ls::optim::ExponentialMovingAverage averages(ddp.parameters(), {.decay = 0.9});
  ls::data::DistributedSampler sampler(samples, group->place(), {.seed = 3});
  ls::data::DataLoader loader(samples, sampler,
                              {.batch_size = kBatch / group->world_size(), .prefetch = 3, .num_workers = 2});
  ls::train::CheckpointParts parts{
      .model = *net, .optimizer = *adam, .ema = averages, .sampler = sampler, .loader = loader, .ddp = ddp};
  const std::string folder = arguments.text("folder");
  if (const auto saved = ls::train::load_checkpoint(folder, parts)) parts.step = saved->step;
  Records records(arguments, group->rank() == 0);
  const std::int64_t last = arguments.number("epochs", 4) * kSamples / kBatch;
  for (; parts.step < last; sampler.set_epoch(sampler.epoch() + 1))
    for (auto& [inputs, targets] : loader) {
      adam->set_lr(rate_of(parts.step));
      adam->zero_grad();
      const ls::Tensor loss = ls::nn::cross_entropy(ddp(inputs), targets);
      scaler.scale(loss).backward();
      adam->step();
      averages.update();
      records.note(++parts.step, loss.item());
      const bool is_preempted = arguments.number("preempt", 0) != 0 && ls::should_stop();
      if (is_preempted || parts.step % arguments.number("save_every", 5) == 0)
        ls::train::save_checkpoint(folder, parts, saving(arguments));
      if (is_preempted) return ls::kPreemptedExitCode;
      if (parts.step == last) break;
    }
  ls::train::wait_for_saves();
  print_weights(*net, averages);
  return 0;
}

// Averages of the weights, and the records.
class Averages : public ls::train::Callback {
 public:
  explicit Averages(Records& records) : records_(records) {}
  void on_train_begin(ls::train::Trainer& trainer) override {
    averages_ = std::make_unique<ls::optim::ExponentialMovingAverage>(
        trainer.model().named_parameters(), ls::optim::ExponentialMovingAverageOptions{.decay = 0.9});
  }
  void on_step_end(ls::train::Trainer&, std::int64_t step, const ls::train::Logs& logs) override {
    averages_->update();
    records_.note(step, static_cast<float>(logs.front().second));
  }
  std::string state_name() const override { return "Averages"; }
  ls::train::CallbackState state() const override {
    return averages_ ? ls::train::CallbackState{.tensors = averages_->state()} : ls::train::CallbackState{};
  }
  void restore(ls::train::Trainer&, const ls::train::CallbackState& state) override {
    const std::vector<ls::NamedTensor> own = averages_->state();
    for (std::size_t i = 0; i < own.size(); ++i) own[i].tensor.copy_from(state.tensors.at(i).tensor);
  }
  ls::optim::ExponentialMovingAverage& averages() { return *averages_; }

 private:
  Records& records_;
  std::unique_ptr<ls::optim::ExponentialMovingAverage> averages_;
};

int train_with_trainer(const RankArguments& arguments) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const bool has_servers = arguments.text("loop") == "servers";
  ls::optim::LossScaler scaler(scaling());
  ls::train::Trainer trainer(make_net);
  trainer.compile({.optimizer = [&](auto parameters) { return make_adam(parameters, has_servers ? nullptr : &scaler); },
                   .loss = ls::nn::cross_entropy,
                   .metrics = {{"accuracy", ls::train::Accuracy()},
                               {"loss_of_samples", ls::train::Mean(ls::train::cross_entropy_of_samples)}},
                   .strategy = has_servers ? "parameter_server" : "ddp",
                   .strategy_options =
                       has_servers ? ls::train::StrategyOptions() : ls::train::StrategyOptions{.ddp = ddp_options()}});
  const std::string folder = arguments.text("folder");
  const auto saved = trainer.load(folder);
  const bool is_server = trainer.strategy().as<ls::train::ParameterHolder>() != nullptr;
  Records records(arguments, trainer.is_first_rank());
  const auto averages = std::make_shared<Averages>(records);
  std::vector<std::shared_ptr<ls::train::Callback>> callbacks = {
      std::make_shared<ls::train::LearningRate>(rate_of), averages,
      std::make_shared<ls::train::ModelCheckpoint>(
          folder,
          ls::train::CheckpointOptions{.every_steps = arguments.number("save_every", 5), .save = saving(arguments)})};
  if (arguments.number("preempt", 0) != 0)
    callbacks.push_back(
        std::make_shared<ls::train::Preemption>(folder, ls::train::PreemptionOptions{.save = saving(arguments)}));
  const NoisySamples samples;
  trainer.fit(ls::data::Pipeline(samples).shuffle(0, 3).batch(kBatch),
              {.epochs = arguments.number("epochs", 4),
               .initial_epoch = saved ? saved->epoch : 0,
               .validation = ls::data::Pipeline(samples).batch(kBatch),
               .callbacks = callbacks,
               .progress = false});
  if (trainer.is_preempted()) return ls::kPreemptedExitCode;
  if (!is_server) print_weights(trainer.model(), averages->averages());
  if (trainer.is_first_rank())
    for (const std::string& name : trainer.history().names())
      for (const double value : trainer.history().values(name)) fmt::print("{} {:a}\n", name, value);
  return 0;
}

int run(int argc, char** argv) {
  const RankArguments arguments(argc, argv);
  return arguments.text("loop") == "own" ? train_in_own_loop(arguments) : train_with_trainer(arguments);
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("resume_rank", run, argc, argv); }
