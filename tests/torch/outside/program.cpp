// A program outside of the tree: fits y = 2 x + 1 on every rank of the job, with a module of LibTorch.
#include <lockstep/comm/bootstrap.h>
#include <lockstep/torch.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>

int main() {
  const auto group = lockstep::init_process_group({.device = &lockstep::cpu_device()});
  torch::nn::Linear line(1, 1);
  auto ddp = lockstep::torch_ddp(line, group);
  torch::optim::SGD sgd(line->parameters(), torch::optim::SGDOptions(0.3));
  const torch::Tensor x = torch::arange(4, torch::kFloat32).reshape({4, 1}) / 4 + group->rank();  // other samples
  for (int step = 0; step < 400; ++step) {
    sgd.zero_grad();
    (ddp(x) - (2 * x + 1)).square().mean().backward();
    sgd.step();
  }
  std::printf("y = %.2f x + %.2f\n", line->weight.item<double>(), line->bias.item<double>());
}
