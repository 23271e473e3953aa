// Conversions between UpdateClock and tensors.
#pragma once

#include <array>

#include "lockstep/core/update_params.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::optim {

inline constexpr std::int64_t kClockValues = sizeof(UpdateClock) / sizeof(double);

inline Tensor clocks_of_shape(const Shape& shape, Device& device) {
  const UpdateClock clock;
  const std::array<double, kClockValues> values = {clock.steps, clock.powers[0], clock.powers[1], clock.product};
  const Tensor clocks = Tensor::empty(shape, DType::kFloat64, cpu_device());
  for (std::int64_t i = 0; i < clocks.count(); ++i)
    clocks.data<double>()[i] = values[static_cast<std::size_t>(i % kClockValues)];
  return clocks.to(device);
}
inline Tensor new_clock(Device& device) { return clocks_of_shape({kClockValues}, device); }
inline Tensor new_clocks(std::size_t count, Device& device) {
  return clocks_of_shape({static_cast<std::int64_t>(count), kClockValues}, device);
}
inline UpdateClock* clock_in(const Tensor& tensor) { return reinterpret_cast<UpdateClock*>(tensor.data<double>()); }

inline void move_to(Device& device, const Tensor& tensor) {
  if (tensor.defined() && &tensor.device() != &device) tensor.rebind(tensor.to(device).buffer());
}

}  // namespace lockstep::optim
