// The program of docs/coming-from-pytorch.md: a small network learns which points of a square lie in a circle. Run it
// from the build's folder:
//
//   launcher/lockrun -n 2 examples/coming_from_pytorch
//
//   [0] accuracy on 256 points: 0.99
//
// A second run with the same folder resumes from run/circle.
#include <lockstep/lockstep.h>

#include <cstdio>

namespace ls = lockstep;
namespace nn = lockstep::nn;

namespace {

// 2,048 points of a square, the same on all ranks, with label 1 in the circle and 0 outside.
std::vector<ls::Tensor> make_circle() {
  const ls::Tensor points = ls::Tensor::empty({2048, 2}), labels = ls::Tensor::empty({2048}, ls::DType::kInt64);
  ls::manual_seed(1);
  nn::init::uniform(points, -1, 1);
  for (std::size_t i = 0; i < 2048; ++i) {
    const float x = points.span<float>()[2 * i], y = points.span<float>()[2 * i + 1];
    labels.span<std::int64_t>()[i] = x * x + y * y < 0.6F ? 1 : 0;
  }
  return {points, labels};
}

struct Net : nn::Module {
  nn::Linear hidden{2, 64}, out{64, 2};
  nn::Dropout dropout{0.1F};
  Net() { add("hidden", hidden), add("dropout", dropout), add("out", out); }
  ls::Tensor forward(const ls::Tensor& x) override { return out(dropout(ls::relu(hidden(x)))); }
};

int train(int, char**) {
  const auto group = ls::init_process_group();
  ls::Device& device = group->local_device();
  const ls::data::TensorDataset circle(make_circle());
  const auto parts = ls::data::random_split(circle, {1792, 256}, /*seed=*/1);
  ls::data::DistributedSampler sampler(parts[0].size(), group->place(), {.shuffle = true, .seed = 1});
  ls::data::DataLoader loader(parts[0], sampler, {.batch_size = 64 / group->world_size(), .device = &device});

  Net net;
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::AdamW adam(ddp.parameters(), {.lr = 0.02F, .weight_decay = 0.01F});
  const ls::optim::CosineRate rate{.peak = 0.02F, .total_steps = 10 * 28};
  ls::train::CheckpointParts state{.model = net, .optimizer = adam, .sampler = sampler, .ddp = ddp};
  if (const auto saved = ls::train::load_checkpoint("run/circle", state))
    state.step = saved->step, state.epoch = saved->epoch;

  while (state.epoch < 10) {
    for (auto& [points, labels] : loader) {
      adam.zero_grad();
      const ls::Tensor loss = nn::cross_entropy(ddp(points), labels);
      loss.backward();  // buckets are all-reduced meanwhile
      ls::optim::clip_grad_norm(ddp.parameters(), 1.0F);
      adam.set_lr(rate.at(state.step++));
      adam.step();
    }
    sampler.set_epoch(++state.epoch);
    ls::train::save_checkpoint("run/circle", state);
  }
  ls::train::Accuracy accuracy;
  ls::train::evaluate(net, parts[1], {&accuracy}, {.device = &device});  // in evaluation mode, without a tape
  if (group->rank() == 0) std::printf("accuracy on 256 points: %.2f\n", accuracy.value());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("coming_from_pytorch", train, argc, argv); }
