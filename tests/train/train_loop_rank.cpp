// A process of a job with a parameter server and two workers in train(): lockrun --ps 1 --workers 2 train_loop_rank
// FOLDER [wrong-options]
//
// worker:1 has no third batch: its reader throws. It catches what train() throws, prints it, and stays, with all that
// it has made, until lockrun ends it. With wrong-options, worker:1 has some before the first step, and both workers
// catch and stay.
#include <unistd.h>

#include <csignal>
#include <cstdio>

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
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const int worker = group->rank();                // the workers are the first ranks
  if (worker != 1) std::signal(SIGTERM, SIG_IGN);  // lockrun gives the others time to say what they know
  const auto next_batch = [worker, step = 0]() mutable -> std::optional<ls::data::Batch> {
    if (++step == 3 && worker == 1) throw ls::FileError("no samples any more");
    return ls::data::Batch{ls::Tensor::full({8, 4}, 1), ls::Tensor::full({8, 4}, 2)};
  };
  const auto deployed = ls::train::deploy({.replica_id = worker < 2 ? worker : 0, .num_replicas = 2, .num_ps_tasks = 1},
                                          training(), {.next_batch = next_batch});
  const bool is_wrong = argc > 2;
  try {
    ls::train::train(deployed.train_op, argv[1], {}, {.number_of_steps = is_wrong && worker == 1 ? -1 : 0});
  } catch (const ls::FileError& error) {
    std::printf("caught: %s\n", error.what());
    std::fflush(stdout);
    ::pause();
  } catch (const ls::Error& error) {
    if (!is_wrong || worker > 1) throw;
    std::printf("caught: %s\n", error.what());
    std::fflush(stdout);
    ::pause();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("train_loop_rank", train, argc, argv); }
