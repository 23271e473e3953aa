// The program of docs/tutorial.md: your own data, operator, model and training, with checkpoints.
//   lockrun -n 2 rings [EPOCHS]
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace ls = lockstep;

namespace {

// Points of a square. The label is the ring around the centre in which a point lies: 0, 1 or 2.
class Rings : public ls::data::Dataset {
 public:
  Rings(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {}
  std::int64_t size() const override { return size_; }
  ls::data::Sample get(std::int64_t index, std::int64_t /*epoch*/) const override {
    ls::Philox random(seed_, /*stream=*/static_cast<std::uint64_t>(index));  // the same point on any rank
    const float x = random.uniform(-1.f, 1.f), y = random.uniform(-1.f, 1.f), point[] = {x, y};
    const std::int64_t ring = std::min(2, static_cast<int>(3 * std::hypot(x, y)));
    return {ls::Tensor::from<float>(point, {2}), ls::data::scalar(ring)};
  }

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

// d sin(x) / dx = cos(x)
class SineNode : public ls::Node {
 public:
  using Node::Node;
  const char* name() const override { return "sine"; }
  void backward(const ls::Tensor& result_grad, std::span<const ls::GradTarget> targets) override {
    const ls::Tensor x_grad = ls::empty_like(result_grad);
    const auto x = saved(0).span<float>(), from = result_grad.span<float>(), to = x_grad.span<float>();
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::cos(x[i]) * from[i];
    targets[0].give(x_grad);
  }
};

ls::Tensor sine(const ls::Tensor& x) {
  ls::check_input("sine", "x", x);  // throws InvalidArgument when x is undefined or not float32
  const ls::Tensor y = ls::empty_like(x);
  const auto from = x.span<float>(), to = y.span<float>();
  std::transform(from.begin(), from.end(), to.begin(), [](float value) { return std::sin(value); });
  ls::record<SineNode>(y, {x}, /*saved=*/std::vector{x});  // attaches the node when a gradient is required
  return y;
}

struct Net : ls::nn::Module {
  ls::nn::Linear hidden{2, 32}, out{32, 3};
  Net() { add("hidden", hidden), add("out", out); }
  ls::Tensor forward(const ls::Tensor& points) override { return out(sine(hidden(points))); }
};

int train(int argc, char** argv) {
  const std::int64_t epochs = argc > 1 ? std::atoi(argv[1]) : 5;
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const Rings points(4096, /*seed=*/1), unseen(1000, /*seed=*/2);
  Net net;
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::Adam adam(ddp.parameters(), {.lr = 0.05f});
  ls::data::DistributedSampler sampler(points.size(), group->place(), {.shuffle = true, .seed = 1});

  ls::train::CheckpointParts state{.model = net, .optimizer = adam, .sampler = sampler};
  if (const auto saved = ls::train::load_checkpoint("run/rings", state))
    state.epoch = saved->epoch, state.step = saved->step;
  for (; state.epoch < epochs; ls::train::save_checkpoint("run/rings", state)) {
    sampler.set_epoch(state.epoch);
    for (auto& [batch, rings] : ls::data::DataLoader(points, sampler, {.batch_size = 128 / group->world_size()})) {
      adam.zero_grad();
      ls::nn::cross_entropy(ddp(batch), rings).backward();
      adam.step();
      ++state.step;
    }
    sampler.set_epoch(++state.epoch);  // where a resumed run continues
    ls::train::Accuracy accuracy;
    ls::train::evaluate(net, unseen, {&accuracy});
    if (group->rank() == 0)
      std::printf("epoch %d: %.2f of 1000 unseen points\n", static_cast<int>(state.epoch), accuracy.value());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("rings", train, argc, argv); }
