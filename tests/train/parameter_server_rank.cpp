// A process of a parameter server's job:
//   parameter_server_rank STEPS [away SECONDS | exit | survive | fail | backup | checkpoint FOLDER]
//
// Trains a line for STEPS steps; each process prints its task and its process number first, and each worker each tenth
// step. worker:1 acts before its fifth step: with "away" it pauses for so long, with "exit" it calls exit(0), with
// "fail" it throws. "survive" and "fail": workers may fail. "backup": one of the workers is a backup, and STEPS are
// those of the servers. "checkpoint": a synchronous job, saved each tenth step, which goes on from its checkpoint. At
// the end worker:0 prints the sum of its weights.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "lockstep/lockstep.h"

namespace ls = lockstep;

namespace {

ls::train::Training training() {
  return {.model = [] { return std::make_unique<ls::nn::Linear>(4, 4); },
          .optimizer =
              [](std::vector<ls::NamedTensor> parameters) {
                return std::make_unique<ls::optim::SGD>(std::move(parameters), ls::optim::SGDOptions{.lr = 0.01F});
              },
          .loss = [](const ls::Tensor& outputs, const ls::Tensor& targets) { return ls::mse_loss(outputs, targets); }};
}

using ls::train::ParameterServerOptions;

struct Arguments {
  int steps = 10;
  std::string mode = {}, value = {};

  bool is(const char* other) const { return mode == other; }
  bool may_lose_workers() const { return is("survive") || is("fail"); }
  ParameterServerOptions options() const {
    if (is("backup")) return {.backup_workers = 1};
    if (is("checkpoint")) return {};
    return {.staleness = 1, .allow_worker_failures = may_lose_workers()};
  }
};

void act_before_fifth_step(const Arguments& arguments) {
  if (arguments.is("away")) std::this_thread::sleep_for(std::chrono::seconds(std::atoi(arguments.value.c_str())));
  if (arguments.is("exit")) std::exit(0);
  if (arguments.is("fail")) throw ls::FileError("no samples any more");
}

void work(ls::train::Strategy& strategy, const ls::train::Task& task, const Arguments& arguments) {
  const auto parts = [&](int step) {
    return ls::train::CheckpointParts{
        .model = strategy.model(), .optimizer = strategy.optimizer(), .step = step, .group = strategy.workers()};
  };
  int step = 0;
  if (arguments.is("checkpoint"))
    if (const auto state = ls::train::load_checkpoint(arguments.value, parts(0))) {
      step = static_cast<int>(state->step);
      std::printf("resumed at step %d\n", step);
    }
  const ls::Tensor inputs = ls::Tensor::full({8, 4}, 1), targets = ls::Tensor::full({8, 4}, 2);
  const auto* const progress = strategy.as<ls::train::ParameterWorker>();
  while (step < arguments.steps) {
    if (task.index == 1 && step == 4) act_before_fifth_step(arguments);
    if (!arguments.mode.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    strategy.step(inputs, targets);
    step = arguments.is("backup") ? static_cast<int>(progress->global_step()) : step + 1;
    if (step % 10 != 0) continue;
    if (arguments.is("checkpoint")) ls::train::save_checkpoint(arguments.value, parts(step));
    std::printf("step %d\n", step);
    std::fflush(stdout);
  }
  float sum = 0;
  for (const ls::Tensor& parameter : strategy.model().parameters())
    for (const float weight : parameter.span<float>()) sum += weight;
  if (arguments.is("backup")) std::printf("dropped %d\n", static_cast<int>(progress->dropped_gradients()));
  if (task.index == 0) std::printf("sum %a\n", static_cast<double>(sum));
}

int train(int argc, char** argv) {
  std::signal(SIGTERM, SIG_IGN);  // lockrun gives the survivors of a loss time to say what they know of it
  const Arguments arguments{argc > 1 ? std::atoi(argv[1]) : 10, argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : ""};
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const auto strategy =
      ls::train::make_strategy("parameter_server", training(), {.parameter_server = arguments.options()});
  const ls::train::Task task = ls::train::task_of_environment(ls::env::text).value();
  std::printf("%s is process %d.\n", ls::train::name_of(task).c_str(), static_cast<int>(::getpid()));
  std::fflush(stdout);
  if (auto* const server = strategy->as<ls::train::ParameterHolder>()) {
    server->serve();
    std::printf("served\n");
    return 0;
  }
  work(*strategy, task, arguments);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("parameter_server_rank", train, argc, argv); }
