// The classic steps of a tutorial on data parallelism, each with numbers that can be checked by hand; every rank checks
// them. Run it from the build's folder:
//
//   launcher/lockrun -n 2 examples/toy_ddp
//
//   [0] all-reduce: 1 + ... + 2 = 3 on each of 2 ranks
//   [0] gradients: every rank has other samples, all have the mean 1.5, not the sum 3
//   [0] backward: it returns final gradients, equal on all ranks, and the weights step to 0.85
//   [0] join: rank r has r + 1 batches; all take 2 steps, with gradients 1.5, 1; every weight is 0.725
//   [0] checkpoint: rank 0 saved it on cpu:0, and after a barrier all loaded it onto cpu:1
//
// It runs with any number of ranks.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace ls = lockstep;

namespace {

constexpr float kRate = 0.1F;
constexpr const char* kFile = "run/toy.safetensors";

// A rank that finds another number throws, which ends the job.
void expect(bool holds, const ls::ProcessGroup& group, const std::string& step) {
  if (!holds) throw ls::Error("rank {}: {}: the result differs from the expected number", group.rank(), step);
}

// One weight, which is 1 on rank 0. The other ranks start with another value, and DistributedDataParallel gives them
// rank 0's.
struct Toy : ls::nn::Module {
  ls::Tensor weight;
  explicit Toy(float start) : weight(ls::Tensor::full({1, 1}, start)) { add_parameter("weight", weight); }
  ls::Tensor forward(const ls::Tensor& x) override { return ls::matmul(x, weight); }
};

// Each rank has a tensor with the value rank + 1; all ranks get the sum.
void sum_tensors(ls::ProcessGroup& group) {
  const int ranks = group.world_size(), sum = ranks * (ranks + 1) / 2;
  std::vector<float> values(4, static_cast<float>(group.rank() + 1));
  group.all_reduce(std::span(values));
  for (const float value : values) expect(value == static_cast<float>(sum), group, "all-reduce");
  if (group.rank() == 0) std::printf("all-reduce: 1 + ... + %d = %d on each of %d ranks\n", ranks, sum, ranks);
}

// The gradient of mean(weight * x) is mean(x), which is rank + 1 before the ranks average it.
void average_gradients(ls::ProcessGroup& group, ls::DistributedDataParallel& ddp, Toy& toy) {
  ls::optim::SGD sgd(ddp.parameters(), {.lr = kRate});
  const ls::Tensor x = ls::Tensor::full({8, 1}, static_cast<float>(group.rank() + 1), group.local_device());
  expect(toy.weight.item() == 1, group, "weights of rank 0 on all ranks");
  sgd.zero_grad();
  ls::mean(ddp(x)).backward();
  const float gradient = ls::grad(toy.weight).item();  // without waiting, and without another call

  const int ranks = group.world_size();
  const float mean = static_cast<float>(ranks + 1) / 2, sum = mean * static_cast<float>(ranks);
  expect(gradient == mean, group, "gradients averaged");
  if (group.rank() == 0)
    fmt::print("gradients: every rank has other samples, all have the mean {:g}, not the sum {:g}\n", mean, sum);

  std::vector<float> everyones(static_cast<std::size_t>(ranks));
  group.all_gather(&gradient, everyones.data(), 1, ls::DType::kFloat32);
  for (const float other : everyones) expect(other == gradient, group, "gradients equal on all ranks");
  expect(ls::grad(toy.weight).item() == gradient, group, "gradients final when backward returned");
  sgd.step();
  const float weight = toy.weight.item();
  expect(std::fabs(weight - (1 - kRate * mean)) < 1e-6F, group, "step");
  ls::check_replicas_equal(group, toy.named_parameters(), "weights");
  if (group.rank() == 0)
    std::printf("backward: it returns final gradients, equal on all ranks, and the weights step to %g\n",
                static_cast<double>(weight));
}

// Rank r has r + 1 batches. A rank without batches takes part in the other ranks' steps with zeros, and steps as they
// do: the sum of the gradients is divided by the number of all ranks.
void train_on_uneven_data(ls::ProcessGroup& group, ls::DistributedDataParallel& ddp, Toy& toy) {
  ls::optim::SGD sgd(ddp.parameters(), {.lr = kRate / 2});
  const ls::Tensor x = ls::Tensor::full({8, 1}, static_cast<float>(group.rank() + 1), group.local_device());
  float expected = toy.weight.item();
  std::vector<float> gradients;  // of all steps, on each rank
  const auto step = [&] {
    gradients.push_back(ls::grad(toy.weight).item());
    sgd.step();
  };
  ddp.join(
      [&] {
        for (int batch = 0; batch <= group.rank(); ++batch) {
          sgd.zero_grad();
          ls::mean(ddp(x)).backward();
          step();
        }
      },
      {.after_step = step});

  const int ranks = group.world_size();
  expect(gradients.size() == static_cast<std::size_t>(ranks), group, "join: as many steps as the longest rank has");
  std::string text;
  for (int number = 0; number < ranks; ++number) {
    float sum = 0;
    for (int rank = number; rank < ranks; ++rank) sum += static_cast<float>(rank + 1);
    const float gradient = gradients[static_cast<std::size_t>(number)];
    expect(std::fabs(gradient - sum / static_cast<float>(ranks)) < 1e-5F, group,
           "join: gradients of those that have data");
    expected -= kRate / 2 * gradient;
    text += fmt::format("{}{:g}", number == 0 ? "" : ", ", gradient);
  }
  expect(std::fabs(toy.weight.item() - expected) < 1e-5F, group, "join: every rank takes every step");
  ls::check_replicas_equal(group, toy.named_parameters(), "weights");
  if (group.rank() == 0)
    std::printf("join: rank r has r + 1 batches; all take %d steps, with gradients %s; every weight is %g\n", ranks,
                text.c_str(), static_cast<double>(toy.weight.item()));
}

// Loads onto another device of this process: the second half of the CPU, or the CPU if the rank's device is a GPU.
void save_and_load(ls::ProcessGroup& group, Toy& toy) {
  if (group.rank() == 0) {
    std::filesystem::create_directories(std::filesystem::path(kFile).parent_path());
    ls::train::save_safetensors(kFile, toy.state_dict());
  }
  group.barrier();  // no rank reads before the file is complete
  ls::Device& other =
      group.local_device().kind() == ls::DeviceKind::kCpu ? ls::device_named("cpu:1") : ls::cpu_device();
  Toy loaded(0);
  loaded.to(other);
  loaded.load_state_dict(ls::train::load_safetensors(kFile).tensors);
  expect(&loaded.weight.device() == &other && loaded.weight.item() == toy.weight.item(), group,
         "weights on another device");
  group.barrier();  // all have read it
  if (group.rank() != 0) return;
  std::filesystem::remove(kFile);
  std::printf("checkpoint: rank 0 saved it on %s, and after a barrier all loaded it onto %s\n",
              toy.weight.device().name().c_str(), other.name().c_str());
}

int train(int, char**) {
  ls::Device::configure({.cpu = 2});  // before the first tensor
  const auto group = ls::init_process_group();
  sum_tensors(*group);
  Toy toy(group->rank() == 0 ? 1.0F : -7.0F);
  toy.to(group->local_device());
  ls::DistributedDataParallel ddp(toy, group);
  average_gradients(*group, ddp, toy);
  train_on_uneven_data(*group, ddp, toy);
  save_and_load(*group, toy);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("toy_ddp", train, argc, argv); }
