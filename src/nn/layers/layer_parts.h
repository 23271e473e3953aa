// Common parts of the constructors of layers.
#pragma once

#include <cmath>
#include <initializer_list>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

// Uniform in +-1/sqrt(fan in), PyTorch's default for linear and convolutional layers: kaiming_uniform with a = sqrt(5)
// (He et al. 2015). Uses the thread's next random stream.
inline Tensor draw_uniform(const Shape& shape, std::int64_t fan_in) {
  const Tensor tensor = Tensor::empty(shape);
  const float bound = 1 / std::sqrt(static_cast<float>(fan_in));
  fill_uniform(tensor, -bound, bound);
  return tensor;
}

// Throws InvalidArgument unless all sizes are at least 1.
inline void check_sizes(const char* layer, std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes)
    if (size < 1) throw InvalidArgument("{}: every size must be positive, got {}", layer, size);
}

inline void check_groups(const char* layer, std::int64_t in_channels, std::int64_t out_channels, std::int64_t groups) {
  if (in_channels % groups != 0 || out_channels % groups != 0)
    throw InvalidArgument("{}: {} groups must divide {} input and {} output channels", layer, groups, in_channels,
                          out_channels);
}

}  // namespace lockstep::nn
