// Data-parallel training in one page. Run it from the build's folder:
//
//   launcher/lockrun -n 2 examples/hello_ddp
//
//   [0] epoch 0: mean loss 0.924
//   [0] epoch 1: mean loss 0.062
//   [0] epoch 2: mean loss 0.008
//   [0] epoch 3: mean loss 0.005
//   [0] epoch 4: mean loss 0.004
//
// Any number of ranks that divides 128 gives the same figures, up to rounding; without lockrun it is one rank. The last
// checkpoint is in run/ckpt.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>

namespace ls = lockstep;

namespace {

constexpr std::int64_t kSide = 12, kGlobalBatch = 128;

// Generated images: noisy stripes in four directions with any phase, so that no single pixel shows the direction.
class Stripes : public ls::data::Dataset {
 public:
  std::int64_t size() const override { return 4096; }
  ls::data::Sample get(std::int64_t index, std::int64_t) const override {
    ls::Philox random(/*seed=*/1, static_cast<std::uint64_t>(index));
    const std::int64_t direction = index % 4;
    const float angle = 0.25f * 3.14159265f * static_cast<float>(direction), phase = random.uniform(0.f, 6.28318531f);
    const auto image = ls::Tensor::empty({kSide, kSide, 1});
    const auto pixels = image.span<float>();
    for (std::int64_t i = 0; i < kSide * kSide; ++i) {
      const float along =
          std::cos(angle) * static_cast<float>(i / kSide) + std::sin(angle) * static_cast<float>(i % kSide);
      pixels[static_cast<std::size_t>(i)] = std::sin(1.2f * along + phase) + 0.5f * random.normal();
    }
    return {image, ls::data::scalar(direction)};
  }
};

struct Net : ls::nn::Module {
  ls::nn::Linear hidden{kSide * kSide, 64, {.activation = ls::Activation::kReLU}}, out{64, 4};
  Net() { add("hidden", hidden), add("out", out); }
  ls::Tensor forward(const ls::Tensor& x) override { return out(hidden(ls::flatten(x))); }
};

int train(int, char**) {
  auto group = ls::init_process_group();  // RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
  auto& device = group->local_device();   // this rank's GPU, or the CPU
  const Stripes stripes;
  Net net;
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);  // rank 0's weights to all; hooks installed
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.02f, .momentum = 0.9f});
  ls::data::DistributedSampler sampler(stripes.size(), group->place(), {.shuffle = true, .seed = 1});
  const std::int64_t batch = kGlobalBatch / group->world_size();
  std::int64_t step = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    float batches = 0;
    auto sum = ls::Tensor::full({}, 0, device);  // of the losses, on the device: reading one waits for the step
    sampler.set_epoch(epoch);
    for (auto& [images, labels] : ls::data::DataLoader(stripes, sampler, {.batch_size = batch, .device = &device})) {
      auto loss = ls::nn::cross_entropy(ddp(images), labels);
      sgd.zero_grad();
      loss.backward();  // buckets all-reduce while this runs
      sgd.step();
      sum = sum + ls::detach(loss), ++batches, ++step;
    }
    float mean = sum.item() / batches;
    group->all_reduce(std::span(&mean, 1), ls::ReduceOp::kAvg);
    if (group->rank() == 0) std::printf("epoch %d: mean loss %.3f\n", epoch, mean);
    // Rank 0 writes; a run that resumes begins with the next epoch.
    sampler.set_epoch(epoch + 1);
    ls::train::save_checkpoint("run/ckpt", {.model = net, .optimizer = sgd, .sampler = sampler, .step = step});
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("hello_ddp", train, argc, argv); }
