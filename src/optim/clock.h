// An update's clock as a tensor.
#pragma once

#include <array>

#include "lockstep/core/update_params.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::optim {

inline Tensor new_clock(Device& device) {
  const UpdateClock clock;
  const std::array values = {clock.steps, clock.powers[0], clock.powers[1], clock.product};
  static_assert(sizeof values == sizeof clock);
  return Tensor::from<double>(values, {static_cast<std::int64_t>(values.size())}).to(device);
}
inline UpdateClock* clock_in(const Tensor& tensor) { return reinterpret_cast<UpdateClock*>(tensor.data<double>()); }

inline void move_to(Device& device, const Tensor& tensor) {
  if (tensor.defined() && &tensor.device() != &device) tensor.rebind(tensor.to(device).buffer());
}

}  // namespace lockstep::optim
