#include <algorithm>

#include "lockstep/nn/conv_transpose.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/init.h"
#include "lockstep/nn/layers.h"

namespace lockstep::nn::init {

namespace {

constexpr float kEmbeddingBound = 0.05F;  // keras.initializers.RandomUniform

void fill_glorot(const Tensor& weight, const Tensor& bias) {
  xavier_uniform(weight);
  if (bias.defined()) zeros(bias);
}

void fill_embedding(const Embedding& layer) {
  uniform(layer.weight, -kEmbeddingBound, kEmbeddingBound);
  if (layer.padding() == kNoPadding) return;
  const std::int64_t width = layer.weight.shape()[1];
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
  const Buffer row = layer.weight.buffer().window(static_cast<std::size_t>(layer.padding()) * bytes, bytes);
  zeros(Tensor::wrap(row, {width}));
}

}  // namespace

void keras_init(Module& module) {
  module.apply([](Module& each) {
    if (const auto* const linear = dynamic_cast<Linear*>(&each)) fill_glorot(linear->weight, linear->bias);
    if (const auto* const conv = dynamic_cast<Conv2d*>(&each)) fill_glorot(conv->weight, conv->bias);
    if (const auto* const conv = dynamic_cast<Conv1d*>(&each)) fill_glorot(conv->weight, conv->bias);
    if (const auto* const conv = dynamic_cast<ConvTranspose2d*>(&each)) fill_glorot(conv->weight, conv->bias);
    if (const auto* const conv = dynamic_cast<ConvTranspose1d*>(&each)) fill_glorot(conv->weight, conv->bias);
    if (const auto* const embedding = dynamic_cast<Embedding*>(&each)) fill_embedding(*embedding);
  });
}

}  // namespace lockstep::nn::init
