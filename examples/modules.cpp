// A module of two inputs and two outputs, from its initialisation to a file of its weights. Run it from the build's
// folder:
//
//   launcher/lockrun -n 2 examples/modules
//
//   [0] Compare(
//   [0]   (first): Linear(2, 16)
//   [0]   (second): Linear(2, 16, bias=false)
//   [0]   (right): Linear(16, 2)
//   [0]   (above): Linear(16, 2)
//   [0] )
//   [0] name    kind     output            parameters
//   [0] first   Linear   (64, 16)                  48
//   [0] second  Linear   (64, 16)                  32
//   [0] right   Linear   (64, 2)                   34
//   [0] above   Linear   (64, 2)                   34
//   [0] total   Compare  (64, 2), (64, 2)         148
//   [0] more than 115 of 128 answers are right
#include <lockstep/lockstep.h>

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>

namespace ls = lockstep;

namespace {

// Given two points: does the second lie to the right of the first, and does it lie above?
struct Compare : ls::nn::Module {
  ls::nn::Linear first{2, 16}, second{2, 16, {.bias = false}}, right{16, 2}, above{16, 2};
  Compare() { add("first", first), add("second", second), add("right", right), add("above", above); }
  std::string kind() const override { return "Compare"; }
  ls::Tensors forward_all(const ls::Tensors& points) override {
    check_inputs(points, 2);
    const ls::Tensor hidden = ls::relu(first(points[0]) + second(points[1]));
    return {right(hidden), above(hidden)};
  }
};

struct Batch {
  ls::Tensors points;  // (64, 2) each
  ls::Tensor right, above;
};

Batch draw(ls::Philox& random) {
  Batch batch{{ls::Tensor::empty({64, 2}), ls::Tensor::empty({64, 2})},
              ls::Tensor::empty({64}, ls::DType::kInt64),
              ls::Tensor::empty({64}, ls::DType::kInt64)};
  for (const ls::Tensor& points : batch.points)
    for (float& coordinate : points.span<float>()) coordinate = random.uniform(-1.f, 1.f);
  const auto a = batch.points[0].span<float>(), b = batch.points[1].span<float>();
  for (std::size_t i = 0; i < 64; ++i) {
    batch.right.span<std::int64_t>()[i] = b[2 * i] > a[2 * i] ? 1 : 0;
    batch.above.span<std::int64_t>()[i] = b[2 * i + 1] > a[2 * i + 1] ? 1 : 0;
  }
  return batch;
}

ls::Tensor loss_of(ls::DistributedDataParallel& ddp, const Batch& batch) {
  const ls::Tensors answers = ddp(batch.points);
  return ls::nn::cross_entropy(answers[0], batch.right) + ls::nn::cross_entropy(answers[1], batch.above);
}

void describe(Compare& net) {
  std::cout << net << "\n";
  std::cout << ls::nn::summary(net, {{{64, 2}}, {{64, 2}}});  // two inputs of float32
}

int train(int, char**) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const bool is_first = group->rank() == 0;
  ls::manual_seed(1);
  Compare net;
  net.apply([](ls::nn::Module& module) {
    if (auto* layer = dynamic_cast<ls::nn::Linear*>(&module)) ls::nn::init::xavier_uniform(layer->weight);
  });
  if (is_first) describe(net);

  ls::DistributedDataParallel ddp(net, group);
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.3f, .momentum = 0.9f});
  ls::Philox random(/*seed=*/1, /*stream=*/static_cast<std::uint64_t>(group->rank()));
  for (int step = 0; step < 200; ++step) {
    const Batch batch = draw(random);
    const ls::Tensor loss = loss_of(ddp, batch);
    sgd.zero_grad();
    loss.backward();
    sgd.step();
  }
  if (!is_first) return 0;

  const std::string path =
      std::filesystem::temp_directory_path() / ("compare-" + std::to_string(getpid()) + ".safetensors");
  ls::train::save_safetensors(path, net.state_dict(), {{"steps", "200"}});
  Compare copy;
  copy.load_state_dict(ls::train::load_safetensors(path).tensors);
  copy.eval();

  std::filesystem::remove(path);
  const Batch batch = draw(random);
  const ls::NoGrad inference;
  const ls::Tensors answers = copy(batch.points);
  const auto right = ls::nn::count_correct(answers[0], batch.right) + ls::nn::count_correct(answers[1], batch.above);
  std::cout << (right > 115 ? "more than 115" : std::to_string(right)) << " of 128 answers are right\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("modules", train, argc, argv); }
