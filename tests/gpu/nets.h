// The networks of the GPU tests, and training that is the same on every device and for every number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/random.h"

namespace lockstep::testing {

// A small variant of the tutorial network: all its operators, with odd sizes.
inline std::unique_ptr<nn::Sequential> make_convolutional(std::int64_t channels = 9) {
  const nn::Conv2dLayerOptions conv{.padding = Padding::all(2), .activation = Activation::kReLU};
  const MaxPool2dOptions halve{.stride = {2, 2}, .padding = Padding::all(1)};
  const LrnOptions lrn{.radius = 4, .bias = 1, .alpha = 0.001F / 9, .beta = 0.75F};
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Conv2d>(3, channels, Size2{5, 5}, conv);
  net->append<nn::MaxPool2d>(Size2{3, 3}, halve);
  net->append<nn::LocalResponseNorm>(lrn);
  net->append<nn::Conv2d>(channels, channels, Size2{3, 3}, nn::Conv2dLayerOptions{.stride = {2, 2}, .padding = Same{}});
  net->append<nn::ReLU>();
  net->append<nn::Flatten>();
  net->append<nn::Linear>(3 * 3 * channels, 33, nn::LinearLayerOptions{.activation = Activation::kReLU});
  net->append<nn::Linear>(33, 10);
  return net;
}
constexpr std::int64_t kImageSide = 11;  // 11 -> 6 -> 3

inline std::unique_ptr<nn::Sequential> make_perceptron() {
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Linear>(kImageSide * kImageSide * 3, 64, nn::LinearLayerOptions{.activation = Activation::kReLU});
  net->append<nn::Linear>(64, 64, nn::LinearLayerOptions{.activation = Activation::kReLU});
  net->append<nn::Linear>(64, 10);
  return net;
}

inline std::unique_ptr<nn::Sequential> make_net(const std::string& name) {
  if (name == "convolutional") return make_convolutional();
  if (name == "perceptron") return make_perceptron();
  throw InvalidArgument("no network '{}'", name);
}

struct Samples {
  Tensor inputs, labels;  // on the CPU
};

// Rows `first` to `first + count` of batch `number`: the same for every caller. The label can be learnt from the
// inputs.
inline Samples make_samples(const std::string& net, std::int64_t number, std::int64_t first, std::int64_t count) {
  const std::int64_t values = kImageSide * kImageSide * 3;
  Samples samples{
      net == "perceptron" ? Tensor::empty({count, values}) : Tensor::empty({count, kImageSide, kImageSide, 3}),
      Tensor::empty({count}, DType::kInt64)};
  const auto inputs = samples.inputs.span<float>();
  const auto labels = samples.labels.span<std::int64_t>();
  for (std::int64_t row = 0; row < count; ++row) {
    Philox random(/*seed=*/11, static_cast<std::uint64_t>(number * 100'000 + first + row));
    const std::int64_t label = random.below(10);
    labels[static_cast<std::size_t>(row)] = label;
    for (std::int64_t i = 0; i < values; ++i)
      inputs[static_cast<std::size_t>(row * values + i)] = 0.5F * random.normal() + (i % 10 == label ? 1.0F : 0.0F);
  }
  return samples;
}

}  // namespace lockstep::testing
