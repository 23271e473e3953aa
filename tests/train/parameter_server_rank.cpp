// A process of a parameter server's job: parameter_server_rank STEPS [away SECONDS | exit]
//
// Trains a line for STEPS steps; each process prints its task and its process number first, worker:0 each tenth step.
// With "away" worker:1 pauses for so long before its fifth step, with "exit" it calls exit(0) there.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

int train(int argc, char** argv) {
  std::signal(SIGTERM, SIG_IGN);  // lockrun gives the survivors of a loss time to say what they know of it
  const int steps = argc > 1 ? std::atoi(argv[1]) : 10;
  const int away_s = argc > 3 && std::strcmp(argv[2], "away") == 0 ? std::atoi(argv[3]) : 0;
  const bool exits = argc > 2 && std::strcmp(argv[2], "exit") == 0;
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const auto strategy =
      ls::train::make_strategy("parameter_server", training(), {.parameter_server = {.staleness = 1}});
  const ls::train::Task task = ls::train::task_of_environment(ls::env::text).value();
  std::printf("%s is process %d\n", ls::train::name_of(task).c_str(), static_cast<int>(::getpid()));
  std::fflush(stdout);
  if (auto* const server = strategy->as<ls::train::ParameterHolder>()) {
    server->serve();
    std::printf("served\n");
    return 0;
  }
  const ls::Tensor inputs = ls::Tensor::full({8, 4}, 1), targets = ls::Tensor::full({8, 4}, 2);
  for (int step = 1; step <= steps; ++step) {
    if (task.index == 1 && step == 5) std::this_thread::sleep_for(std::chrono::seconds(away_s));
    if (task.index == 1 && step == 5 && exits) std::exit(0);
    strategy->step(inputs, targets);
    if (task.index > 0 || step % 10 != 0) continue;
    std::printf("step %d\n", step);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("parameter_server_rank", train, argc, argv); }
