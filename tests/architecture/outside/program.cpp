// A user's program in 25 lines: any number of ranks learn y = 2x + 1, and an error of the library is caught.
// caught.
#include <lockstep/lockstep.h>

#include <cstdio>

namespace ls = lockstep;

int train(int, char**) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  ls::nn::Linear line{1, 1};
  ls::DistributedDataParallel ddp(line, group);
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.5f});
  const float at = static_cast<float>(group->rank() + 1) / static_cast<float>(group->world_size());
  for (int step = 0; step < 300; ++step) {
    const float x[] = {at, at - 1}, y[] = {2 * at + 1, 2 * at - 1};
    sgd.zero_grad();
    ls::mse_loss(ddp(ls::Tensor::from<float>(x, {2, 1})), ls::Tensor::from<float>(y, {2, 1})).backward();
    sgd.step();
  }
  try {
    ls::nn::cross_entropy(ddp(ls::Tensor::zeros({1, 1})), ls::Tensor::zeros({1}));
  } catch (const ls::InvalidArgument&) {
    std::printf("y = %.2f x + %.2f\n", line.weight.item(), line.bias.item());
  }
  return 0;
}

int main(int argc, char** argv) { return ls::run_main("program", train, argc, argv); }
