// ResNet-18 for CIFAR-10 of LibTorch's own modules (libtorch_resnet18.h), trained data-parallel: PyTorch's C++ API has
// no DistributedDataParallel. Built with -Dtorch=DIR (docs/libtorch.md). From the build's folder:
//
//   launcher/lockrun -n 2 examples/libtorch_ddp                 20 steps
//   launcher/lockrun -n 2 examples/libtorch_ddp 1000 run/torch  1000 steps, with a checkpoint every 100 from which the
//                                                               next start of the command continues
//   launcher/lockrun -n 2 examples/libtorch_ddp --cuda 1000     on GPUs, one for each rank
//
// It reads CIFAR-10 in the folder that LOCKSTEP_DATA names (scripts/fetch-data), else generated images, and prints
// lines such as
//
//   [0] step 20: loss 1.903
#include <dlfcn.h>
#include <lockstep/lockstep.h>
#include <lockstep/torch.h>
#include <lockstep/torch_checkpoint.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "examples/libtorch_resnet18.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using libtorch_resnet18::ResNet18;

namespace {

constexpr std::int64_t kGlobalBatch = 64, kLogEvery = 10, kSaveEvery = 100;

// Views of a batch in the loader's memory. Images are (N, H, W, C) there, which PyTorch calls channels_last.
torch::Tensor images_of(const ls::Tensor& batch) {
  const auto shape = batch.shape().extents();
  return torch::from_blob(batch.data<float>(), at::IntArrayRef(shape.data(), shape.size()), torch::kFloat32)
      .permute({0, 3, 1, 2});
}
torch::Tensor labels_of(const ls::Tensor& batch) {
  return torch::from_blob(batch.data<std::int64_t>(), {batch.shape()[0]}, torch::kInt64);
}

ls::data::Cifar10 training_images() {
  const ls::data::Cifar10Options options{.train = true, .seed = 1};
  const std::string folder = ls::data::find_cifar10("");
  return folder.empty() ? ls::data::Cifar10({.train_images = 2000}, options) : ls::data::Cifar10(folder, options);
}

// PyTorch's CUDA part registers itself when it is loaded, which takes seconds: only when it is needed.
void load_cuda() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    throw ls::Error("--cuda: cannot load PyTorch's CUDA part, which only its wheels with CUDA have: {}", dlerror());
}

torch::Device device_of(const ls::ProcessGroup& group, bool on_cuda) {
  if (!on_cuda) return torch::kCPU;
  const ls::Device& device = group.local_device();
  if (device.kind() != ls::DeviceKind::kCuda)
    throw ls::InvalidArgument("--cuda: rank {}: the group's device is the CPU, expected a GPU", group.rank());
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(device.index())};
}

int train(int argc, char** argv) {
  const bool on_cuda = argc > 1 && std::string_view(argv[1]) == "--cuda";
  if (on_cuda) load_cuda(), --argc, ++argv;
  const std::int64_t steps = argc > 1 ? std::atoll(argv[1]) : 20;
  if (steps < 1 || argc > 3 || (argc > 2 && std::string_view(argv[2]).starts_with("--")))
    throw ls::InvalidArgument("usage: libtorch_ddp [--cuda] [STEPS [FOLDER]], with 1 step or more");
  const std::string folder = argc > 2 ? argv[2] : "";
  const auto group = ls::init_process_group({.device = on_cuda ? nullptr : &ls::cpu_device()});
  const torch::Device device = device_of(*group, on_cuda);
  torch::manual_seed(1);
  ResNet18 net;
  net->to(device);
  auto ddp = ls::torch_ddp(net, group);  // rank 0's weights to all; hooks installed
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(5e-4));
  ls::TorchCheckpointParts state{.model = *net, .optimizer = sgd, .group = group};
  if (!folder.empty()) state.step = ls::load_torch_checkpoint(folder, state).value_or(0);

  const ls::data::Cifar10 dataset = training_images();
  ls::data::DistributedSampler sampler(dataset.size(), group->place(),
                                       {.seed = 1, .remainder = ls::data::Remainder::kDrop});
  const std::int64_t batch = kGlobalBatch / group->world_size(), steps_per_epoch = dataset.size() / kGlobalBatch;
  while (state.step < steps) {
    sampler.set_epoch(state.step / steps_per_epoch);
    for (auto& [inputs, targets] : ls::data::DataLoader(dataset, sampler, {.batch_size = batch, .drop_last = true})) {
      sgd.zero_grad();
      const torch::Tensor images = images_of(inputs).to(device), labels = labels_of(targets).to(device);
      const torch::Tensor loss = nn::functional::cross_entropy(ddp(images), labels);
      loss.backward();  // buckets all-reduce while this runs
      sgd.step();
      ++state.step;
      if (group->rank() == 0 && (state.step % kLogEvery == 0 || state.step == steps))
        std::printf("step %d: loss %.3f\n", static_cast<int>(state.step), loss.item<double>()), std::fflush(stdout);
      if (!folder.empty() && (state.step % kSaveEvery == 0 || state.step == steps))
        ls::save_torch_checkpoint(folder, state);
      if (state.step >= steps) break;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("libtorch_ddp", train, argc, argv); }
