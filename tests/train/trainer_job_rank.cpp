// A program with a Trainer and without init_process_group(), as Keras users write it. Each rank prints its world.
// lockrun -n 2 trainer_job_rank STRATEGY
#include <cstdio>

#include "lockstep/lockstep.h"

namespace ls = lockstep;

int train(int, char** argv) {
  ls::train::Trainer trainer([] {
    auto net = std::make_unique<ls::nn::Sequential>();
    net->append<ls::nn::Linear>(2, 1);
    return net;
  });
  trainer.compile(
      {.optimizer =
           [](std::vector<ls::NamedTensor> parameters) {
             return std::make_unique<ls::optim::SGD>(std::move(parameters), ls::optim::SGDOptions{.lr = 0.1F});
           },
       .loss = [](const ls::Tensor& outputs, const ls::Tensor& targets) { return ls::mse_loss(outputs, targets); },
       .strategy = argv[1]});
  const ls::data::TensorDataset set({ls::Tensor::full({8, 2}, 1), ls::Tensor::full({8, 1}, 3)});
  trainer.fit(ls::data::Pipeline(set).batch(4), {.epochs = 1, .progress = false});
  const auto group = ls::default_process_group();
  std::printf("rank %d of %d trained\n", group ? group->rank() : 0, group ? group->world_size() : 1);
  return 0;
}

int main(int argc, char** argv) { return ls::run_main("trainer_job_rank", train, argc, argv); }
