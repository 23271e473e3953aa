// Steps of ResNet-18 with LibTorch's modules and Lockstep's DDP, for libtorch_ddp.py, which has the same in Python:
//
//   lockrun --no-fold -n 2 build/bench/libtorch_step STEPS BATCH
//
// The weights and each rank's batch come from PyTorch's generator, as there. Rank 0 prints one JSON line: the ranks'
// losses of the first and the last step, added up, and the milliseconds of each step.
#include <ATen/Parallel.h>
#include <lockstep/lockstep.h>
#include <lockstep/torch.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "examples/libtorch_resnet18.h"

namespace ls = lockstep;
namespace nn = torch::nn;

namespace {

int measure(int argc, char** argv) {
  if (argc != 3) throw ls::InvalidArgument("libtorch_step: expected STEPS BATCH, see bench/peers/libtorch_ddp.py");
  const std::int64_t steps = std::atoll(argv[1]), batch = std::atoll(argv[2]);
  at::set_num_threads(1);
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  torch::manual_seed(1);
  libtorch_resnet18::ResNet18 net;
  auto ddp = ls::torch_ddp(net, group);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(5e-4));
  torch::manual_seed(static_cast<std::uint64_t>(2 + group->rank()));
  const torch::Tensor images = torch::randn({batch, 3, 32, 32}), labels = torch::randint(10, {batch}, torch::kInt64);

  std::vector<double> losses, times;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    sgd.zero_grad();
    const torch::Tensor loss = nn::functional::cross_entropy(ddp(images), labels);
    loss.backward();
    sgd.step();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    losses.push_back(loss.item<double>());
  }
  double sums[] = {losses.front(), losses.back()};
  group->all_reduce(sums, std::size(sums), ls::DType::kFloat64);
  if (group->rank() != 0) return 0;
  std::string list;
  for (const double ms : times) list += (list.empty() ? "" : ", ") + std::to_string(ms);
  std::printf("{\"losses\": [%.9g, %.9g], \"ms\": [%s]}\n", sums[0], sums[1], list.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("libtorch_step", measure, argc, argv); }
