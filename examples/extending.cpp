// Parts of your own: a data set, an operator with its gradient, a module, and two hooks. Run
// it from the build's folder:
//
//   launcher/lockrun -n 2 examples/extending
//
//   [0] 80 steps; the loss fell from 0.7 to 0.1
//   [0] gradients seen 80 times, 192 bytes sent in each step
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>

namespace ls = lockstep;

namespace {

// Points in a square, generated. The label says whether a point lies outside of a circle.
class Circle : public ls::data::Dataset {
 public:
  std::int64_t size() const override { return 1024; }
  ls::data::Sample get(std::int64_t index, std::int64_t epoch) const override {
    const auto sample = static_cast<std::uint64_t>(epoch * size() + index);
    ls::Philox random(/*seed=*/1, /*stream=*/sample);  // the same numbers on any rank
    const float x = random.uniform(-1.f, 1.f), y = random.uniform(-1.f, 1.f);
    const std::vector point = {x, y};
    const std::int64_t label = x * x + y * y > 0.6f ? 1 : 0;
    return {ls::Tensor::from(std::span(point), {2}), ls::data::scalar(label)};
  }
};

// x^2, elementwise, by the kernels of the device that has x: the CPU or a GPU.
class SquareNode : public ls::Node {
 public:
  using Node::Node;
  const char* name() const override { return "square"; }
  void backward(const ls::Tensor& result_grad, std::span<const ls::GradTarget> targets) override {
    const ls::KernelTable& kernels = ls::kernels_of(result_grad);
    ls::Stream& stream = ls::stream_of(result_grad);
    // In place: the node owns its result's gradient.
    kernels.binary(ls::BinaryFunction::kMul, saved(0), result_grad, result_grad, stream);
    kernels.scale(result_grad, 2, targets[0], stream);  // writes x's gradient, or adds to it
  }
};

ls::Tensor square(const ls::Tensor& x) {
  ls::check_activation("square", "x", x);  // throws InvalidArgument when x is undefined or not of a float type
  const ls::Tensor y = ls::empty_like(x);
  ls::kernels_of(x).binary(ls::BinaryFunction::kMul, x, x, y, ls::stream_of(x));
  ls::record<SquareNode>(y, {x}, /*saved=*/std::vector{x});  // does nothing when no gradient is required
  return y;
}

// Two layers, with the operator between them, and a parameter of its own.
struct Radial : ls::nn::Module {
  ls::Tensor bias = ls::Tensor::zeros({2});
  ls::nn::Linear hidden{2, 4, {.bias = false}}, out{4, 2, {.bias = false}};
  Radial() { add_parameter("bias", bias), add("hidden", hidden), add("out", out); }
  std::string kind() const override { return "Radial"; }
  ls::Tensor forward(const ls::Tensor& x) override { return ls::bias_add(out(square(hidden(x))), bias); }
};

int train(int, char**) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const Circle circle;
  Radial net;

  // Called in backward when this rank's gradient is complete and before it travels, even if registered after wrapping.
  // The hook may change the gradient in place; it never sees the average. It is removed with its handle.
  int gradients_seen = 0;
  const ls::HookHandle watch = ls::register_grad_hook(net.bias, [&](const ls::Tensor& bias) {
    if (std::isfinite(ls::grad(bias).span<float>()[0])) ++gradients_seen;
  });

  // Reduces a bucket as DistributedDataParallel does without a hook, and counts its bytes.
  std::size_t bytes_sent = 0;
  const ls::CommHook count_and_average = [&](ls::ProcessGroup& among, const ls::GradBucket& bucket) {
    bytes_sent += bucket.count * ls::size_of(bucket.dtype);
    return among.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ls::ReduceOp::kAvg,
                                  {.purpose = {"bucket", bucket.index}, .device = bucket.device});
  };
  ls::DistributedDataParallel ddp(net, group, {.comm_hook = count_and_average});
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.5f, .momentum = 0.9f});
  ls::data::DistributedSampler sampler(circle.size(), group->place(), {.shuffle = true, .seed = 1});
  int steps = 0;
  ls::Tensor first, last;  // losses; they are read in the end, because reading waits for the device
  for (int epoch = 0; epoch < 10; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& [points, labels] : ls::data::DataLoader(circle, sampler, {.batch_size = 128 / group->world_size()})) {
      auto loss = ls::nn::cross_entropy(ddp(points), labels);
      sgd.zero_grad();
      loss.backward();
      sgd.step();
      last = ls::detach(loss);
      if (steps++ == 0) first = last;
    }
  }
  if (group->rank() != 0) return 0;
  std::printf("%d steps; the loss fell from %.1f to %.1f\n", steps, first.item(), last.item());
  std::printf("gradients seen %d times, %zu bytes sent in each step\n", gradients_seen,
              bytes_sent / static_cast<std::size_t>(steps));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("extending", train, argc, argv); }
