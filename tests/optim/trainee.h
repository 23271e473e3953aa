// Parameters whose gradients a test sets by hand.
#pragma once

#include <cmath>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

inline Tensor parameter_of(const std::vector<float>& values) {
  const Tensor parameter = Tensor::from<float>(values, {static_cast<std::int64_t>(values.size())});
  require_grad(parameter);
  bind_grad(parameter, cpu_device().allocate(parameter.bytes()));
  return parameter;
}

inline void give_gradient(const Tensor& parameter, const std::vector<float>& values) {
  grad(parameter).copy_from(Tensor::from<float>(values, parameter.shape()));
  mark_grad_written(parameter);
}

inline std::vector<float> values_of(const Tensor& tensor) {
  return {tensor.span<float>().begin(), tensor.span<float>().end()};
}

// Gradients of step 1, 2, ...: waves of many magnitudes.
inline std::vector<float> gradient_of_step(int step, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double magnitude = std::pow(10.0, static_cast<double>(i % 5) - 3), phase = static_cast<double>(i);
    values[i] = static_cast<float>(magnitude * (std::sin(0.37 * step + phase) + 0.3));
  }
  return values;
}

inline std::vector<float> weights_at_first(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(std::cos(1.3 * static_cast<double>(i)));
  return values;
}

}  // namespace lockstep::optim
