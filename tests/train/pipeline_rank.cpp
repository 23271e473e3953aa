// A stage of model_parallel as a process: pipeline_rank STEP; at that step rank 1 is killed, as the kernel does it to
// who takes too much memory.
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;

std::unique_ptr<ls::nn::Module> make_model() {
  auto net = std::make_unique<ls::nn::Sequential>();
  for (int i = 0; i < 3; ++i)
    net->append<ls::nn::Linear>(8, 8, ls::nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
  return net;
}

int run(int argc, char** argv) {
  const int killed_at = argc > 1 ? std::atoi(argv[1]) : -1;
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const auto strategy = ls::train::make_strategy(
      "model_parallel",
      {.model = make_model,
       .optimizer =
           [](std::vector<ls::NamedTensor> parameters) {
             return std::make_unique<ls::optim::SGD>(parameters, ls::optim::SGDOptions{});
           },
       .loss = [](const ls::Tensor& outputs, const ls::Tensor& targets) { return ls::mse_loss(outputs, targets); }},
      {.group = group, .micro_batches = 4});
  const ls::Tensor inputs = ls::Tensor::full({8, 8}, 1), targets = ls::Tensor::full({8, 8}, 2);
  for (int step = 0; step < 1'000'000; ++step) {
    if (step == killed_at && group->rank() == 1) std::raise(SIGKILL);
    strategy->step(inputs, targets);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("pipeline_rank", run, argc, argv); }
