// A small network with every kind of layer, its data, and its training on any device.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "src/core/device/cpu_device.h"

namespace lockstep::testing {

struct SmallNet : nn::Sequential {
  SmallNet() {
    append_named<nn::Conv2d>("conv1", 3, 4, Size2{3, 3},
                             nn::Conv2dLayerOptions{.padding = Same{}, .activation = Activation::kReLU});
    append_named<nn::MaxPool2d>("pool1", Size2{3, 3}, MaxPool2dOptions{.stride = {2, 2}, .padding = Same{}});
    append_named<nn::LocalResponseNorm>("norm1", LrnOptions{.radius = 2, .bias = 1, .alpha = 0.001F, .beta = 0.75F});
    append_named<nn::Conv2d>("conv2", 4, 4, Size2{3, 3}, nn::Conv2dLayerOptions{.stride = {2, 2}, .padding = Same{}});
    append_named<nn::Flatten>("flatten");
    append_named<nn::Linear>("hidden", 2 * 2 * 4, 8, nn::LinearLayerOptions{.activation = Activation::kReLU});
    append_named<nn::Linear>("out", 8, 5);
  }
};

inline const Shape kImages{4, 8, 8, 3};

// Batch `number`, on the CPU: a pure function.
inline data::Batch small_batch(int number) {
  data::Batch batch{Tensor::empty(kImages), Tensor::empty({kImages[0]}, DType::kInt64)};
  int at = 7919 * number;
  for (float& value : batch.inputs().span<float>()) value = static_cast<float>(at++ * 37 % 101) / 50 - 1;
  for (std::int64_t& label : batch.targets().span<std::int64_t>()) label = at++ % 5;
  return batch;
}

// The CPU with the reference kernels, which the recording device also uses: the same bits.
inline Device& plain_cpu() {
  static CpuDevice device(reference_kernels());
  return device;
}

// The values of a tensor on any device.
inline std::vector<float> values_of(const Tensor& tensor) {
  const Tensor host = tensor.to(cpu_device());
  return {host.span<float>().begin(), host.span<float>().end()};
}

inline std::vector<std::vector<float>> weights_of(const nn::Module& module) {
  std::vector<std::vector<float>> all;
  for (const Tensor& parameter : module.parameters()) all.push_back(values_of(parameter));
  return all;
}

inline Tensor train_step(const auto& forward, optim::Optimizer& optimizer, const data::Batch& batch) {
  const Tensor loss = nn::cross_entropy(forward(batch.inputs()), batch.targets());
  optimizer.zero_grad();
  loss.backward();
  optimizer.step();
  return loss;
}

// The result of five steps on the device: the losses, and the weights after them.
struct Training {
  std::vector<float> losses;
  std::vector<std::vector<float>> weights;
  bool operator==(const Training&) const = default;
};
inline Training train_alone(Device& device, int steps = 5) {
  manual_seed(3);
  SmallNet net;
  net.to(device);
  optim::SGD sgd(net.named_parameters(), {.lr = 0.05F, .momentum = 0.9F, .weight_decay = 0.01F});
  std::vector<Tensor> losses;
  for (int step = 0; step < steps; ++step) {
    const data::Batch batch = small_batch(step);
    losses.push_back(train_step([&](const Tensor& x) { return net(x); }, sgd,
                                {batch.inputs().to(device), batch.targets().to(device)}));
  }
  Training result{{}, weights_of(net)};
  for (const Tensor& loss : losses) result.losses.push_back(loss.item());
  return result;
}

}  // namespace lockstep::testing
