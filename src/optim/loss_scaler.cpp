#include "lockstep/optim/loss_scaler.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <span>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/error.h"

namespace lockstep::optim {

namespace {

constexpr std::int64_t kFields = sizeof(LossScaleState) / sizeof(float);
constexpr std::int64_t kLongestInterval = 1 << 24;  // what a float counts to

LossScaleState read(const Tensor& state) {
  LossScaleState values{};
  state.device().copy(&values, state.data<float>(), sizeof values, state.device().default_stream());
  state.device().default_stream().synchronize();
  return values;
}

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options) : rule_{options.growth, options.backoff, options.growth_interval} {
  if (!(options.initial > 0) || !std::isfinite(options.initial) || !(options.growth >= 1) || !(options.backoff > 0) ||
      options.backoff > 1 || options.growth_interval < 1 || options.growth_interval > kLongestInterval)
    throw InvalidArgument(
        "LossScaler: initial {} must be positive, growth {} at least 1, backoff {} above 0 and at most 1, growth_interval {} in 1..{}",
        options.initial, options.growth, options.backoff, options.growth_interval, kLongestInterval);
  state_ = Tensor::from<float>(std::array<float, kFields>{options.initial, 0, 0, 0}, {kFields});
}

Tensor LossScaler::scale(const Tensor& loss) {
  const Tensor& state = state_on(loss.device());
  static_assert(offsetof(LossScaleState, scale) == 0);
  return scale_by(loss, Tensor::wrap(state.buffer().window(0, sizeof(float)), {}));
}

float LossScaler::value() const { return read(state_).scale; }
std::int64_t LossScaler::skipped_steps() const { return static_cast<std::int64_t>(read(state_).skipped_steps); }

const Tensor& LossScaler::state_on(Device& device) {
  if (&state_.device() != &device) state_.rebind(state_.to(device).buffer());
  return state_;
}

LossScaleState* LossScaler::data_on(Device& device) { return reinterpret_cast<LossScaleState*>(state_on(device).data<float>()); }

}  // namespace lockstep::optim
