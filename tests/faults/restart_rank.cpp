// One process of a training by any strategy that continues from its checkpoint:
//
//   restart_rank strategy=ddp folder=DIR steps=1000 save_every=5 pause_ms=2 background=1 hold=FILE
//
// strategy: ddp, zero, model_parallel (a stage for each rank) or parameter_server (under lockrun --ps --workers). The
// samples of a step depend on its number and the rank, and the net has dropout. The last step is not made while the
// file `hold` exists. At the end rank 0, or worker 0, prints the hash of its weights.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/faults/rank_arguments.h"

namespace {

namespace ls = lockstep;
using ls::testing::RankArguments;

constexpr std::int64_t kInputs = 16, kClasses = 4, kBatch = 8;

ls::train::Training training() {
  return {.model =
              [] {
                ls::manual_seed(11);
                auto net = std::make_unique<ls::nn::Sequential>();
                net->append<ls::nn::Linear>(kInputs, 32,
                                            ls::nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
                net->append<ls::nn::Dropout>(0.25F);
                net->append<ls::nn::Linear>(32, 32, ls::nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
                net->append<ls::nn::Linear>(32, kClasses);
                return net;
              },
          .optimizer =
              [](std::vector<ls::NamedTensor> parameters) {
                return std::make_unique<ls::optim::Adam>(std::move(parameters), ls::optim::AdamOptions{.lr = 0.01F});
              },
          .loss = ls::nn::cross_entropy};
}

std::pair<ls::Tensor, ls::Tensor> samples_of(std::int64_t step, int part) {
  ls::Philox random(/*seed=*/5, static_cast<std::uint64_t>(step) * 64 + static_cast<std::uint64_t>(part));
  std::vector<float> inputs(kBatch * kInputs);
  std::vector<std::int64_t> classes(kBatch);
  for (float& input : inputs) input = random.uniform(-1.F, 1.F);
  for (std::size_t i = 0; i < classes.size(); ++i) classes[i] = inputs[i * kInputs] > 0 ? 1 : 3;
  return {ls::Tensor::from(std::span<const float>(inputs), {kBatch, kInputs}),
          ls::Tensor::from(std::span<const std::int64_t>(classes), {kBatch})};
}

int train(const RankArguments& arguments) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const std::string name = arguments.text("strategy"), folder = arguments.text("folder");
  const bool has_stages = name == "model_parallel";
  const auto strategy = ls::train::make_strategy(
      name, training(),
      has_stages ? ls::train::StrategyOptions{.group = group, .micro_batches = 2} : ls::train::StrategyOptions());
  if (auto* const server = strategy->as<ls::train::ParameterHolder>()) {
    server->serve();
    return 0;
  }
  const auto workers = has_stages ? group : strategy->workers();
  std::int64_t step = 0;
  const auto parts = [&] {
    return ls::train::CheckpointParts{
        .model = strategy->model(), .optimizer = strategy->optimizer(), .step = step, .group = workers};
  };
  if (const auto saved = ls::train::load_checkpoint(folder, parts())) step = saved->step;
  const ls::train::SaveOptions saving{.background = arguments.number("background", 0) != 0,
                                      .on_error = ls::train::OnSaveError::kStop};
  const std::int64_t steps = arguments.number("steps", 100), save_every = arguments.number("save_every", 5);
  while (step < steps) {
    if (step + 1 == steps) ls::testing::wait_while_held(arguments);
    const auto [inputs, targets] = samples_of(step, has_stages ? 0 : workers->rank());
    strategy->step(inputs, targets);
    if (++step % save_every == 0) ls::train::save_checkpoint(folder, parts(), saving);
    std::this_thread::sleep_for(std::chrono::milliseconds(arguments.number("pause_ms", 0)));
  }
  ls::train::wait_for_saves(workers);
  const std::string hash = ls::hash_of(strategy->model().named_parameters());
  if (workers->rank() == 0) fmt::print("weights {}\n", hash);
  return 0;
}

int run(int argc, char** argv) { return train(RankArguments(argc, argv)); }

}  // namespace

int main(int argc, char** argv) { return ls::run_main("restart_rank", run, argc, argv); }
