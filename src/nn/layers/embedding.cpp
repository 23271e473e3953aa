#include "lockstep/nn/embedding.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/tensor/random.h"
#include "src/nn/layers/layer_parts.h"

namespace lockstep::nn {

Embedding::Embedding(std::int64_t words, std::int64_t width, std::int64_t padding) : padding_(padding) {
  check_sizes("Embedding", {words, width});
  if (padding != kNoPadding && (padding < 0 || padding >= words))
    throw InvalidArgument("Embedding: padding {} is outside 0..{}, the rows of the weight", padding, words - 1);
  weight = Tensor::empty({words, width}, DType::kFloat32, cpu_device());  // the row of the padding is written here
  fill_normal(weight, 0, 1);
  if (padding != kNoPadding) std::fill_n(weight.data<float>() + padding * width, width, 0.0F);
  weight = weight.to(default_device());
  add_parameter("weight", weight);
}

std::string Embedding::extra_repr() const {
  return fmt::format("{}, {}{}", weight.shape()[0], weight.shape()[1],
                     padding_ == kNoPadding ? "" : fmt::format(", padding={}", padding_));
}

}  // namespace lockstep::nn
