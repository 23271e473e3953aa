#include "lockstep/optim/loss_scaler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/error.h"
#include "lockstep/core/kernels.h"

namespace lockstep::optim {

namespace {

constexpr std::int64_t kFields = sizeof(LossScaleState) / sizeof(float),
                       kStepFields = sizeof(LossScaleStep) / sizeof(float);
constexpr std::int64_t kLongestInterval = 1 << 24;                   // the largest count that a float holds exactly
constexpr float kSmallestScale = std::numeric_limits<float>::min();  // so that 1 / scale is finite

LossScaleState read(const Tensor& state) {
  LossScaleState values{};
  state.device().copy(&values, state.data<float>(), sizeof values, state.device().default_stream());
  state.device().default_stream().synchronize();
  return values;
}

LossScaleState* state_in(const Tensor& tensor) { return reinterpret_cast<LossScaleState*>(tensor.data<float>()); }
LossScaleStep* step_in(const Tensor& tensor) { return reinterpret_cast<LossScaleStep*>(tensor.data<float>()); }

Tensor field_of(const Tensor& tensor, std::size_t offset) {
  return Tensor::wrap(tensor.buffer().window(offset, sizeof(float)), {});
}

const LossScalerOptions& checked(const LossScalerOptions& options) {
  if (!(options.initial > 0) || !std::isfinite(options.initial) || !(options.growth >= 1) || !(options.backoff > 0) ||
      options.backoff > 1 || options.growth_interval < 1 || options.growth_interval > kLongestInterval)
    throw InvalidArgument(
        "LossScaler: initial {} must be above 0, growth {} at least 1, backoff {} above 0 and at most 1, "
        "growth_interval {} in 1..{}",
        options.initial, options.growth, options.backoff, options.growth_interval, kLongestInterval);
  if (!(options.min_scale >= kSmallestScale) || !(options.initial >= kSmallestScale))
    throw InvalidArgument("LossScaler: min_scale {} and initial {} must be at least {} (2^-126)", options.min_scale,
                          options.initial, kSmallestScale);
  if (options.max_skips_in_a_row < 0 || options.max_skips_in_a_row > kLongestInterval)
    throw InvalidArgument("LossScaler: max_skips_in_a_row {} must be in 0..{} (0: unlimited)",
                          options.max_skips_in_a_row, kLongestInterval);
  return options;
}

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(checked(options)),
      rule_{options.growth, options.backoff, options.growth_interval, std::min(options.min_scale, options.initial)} {
  state_ = Tensor::from<float>(std::array<float, kFields>{options.initial, 0, 0, 0}, {kFields}, cpu_device());
  copies_.push_back({&state_.device(), Tensor::zeros({kStepFields}, DType::kFloat32, cpu_device()), 0});
}

Tensor LossScaler::scale(const Tensor& loss) {
  static_assert(offsetof(LossScaleStep, begin) == 0 && offsetof(LossScaleState, scale) == 0);
  Device& device = loss.device();
  std::unique_lock lock(mutex_);
  if (!is_claimed_) move_to(device);
  // A recorded graph begins a step in each replay. Beginning twice before an optimizer's step equals beginning once.
  if (is_new() || !has_stepped_.empty() || device.default_stream().is_capturing()) begin();
  const Tensor factor = field_of(copy_on(device).step, 0);
  lock.unlock();
  return scale_by(loss, factor);
}

float LossScaler::value() const { return read(state_).scale; }
std::int64_t LossScaler::skipped_steps() const { return static_cast<std::int64_t>(read(state_).skipped_steps); }
std::int64_t LossScaler::skips_in_a_row() const {
  return std::max<std::int64_t>(0, -static_cast<std::int64_t>(read(state_).good_steps));
}

void LossScaler::check() const {
  if (options_.max_skips_in_a_row == 0) return;
  const LossScaleState state = read(state_);
  const auto skips = -static_cast<std::int64_t>(state.good_steps);
  if (skips < options_.max_skips_in_a_row) return;
  throw Error(
      "LossScaler: in each of the last {} steps a gradient was infinite or NaN, so these steps were skipped and the "
      "scale "
      "has fallen to {}; expected fewer than {} in a row. A smaller scale does not help: look for NaN in the samples "
      "and "
      "in the loss, lower the learning rate, clip gradients, or compute in bfloat16; .max_skips_in_a_row changes the "
      "limit (0: unlimited)",
      skips, state.scale, options_.max_skips_in_a_row);
}

// True before the first begin(), and after another state was loaded.
bool LossScaler::is_new() const { return number_ == 0 || state_.version() != seen_; }

void LossScaler::begin() {
  Device& device = state_.device();
  device.kernels().begin_loss_scale(rule_, state_in(state_), step_in(copies_.front().step), device.default_stream());
  copies_.front().number = ++number_;
  has_stepped_.clear();
  seen_ = state_.version();
}

void LossScaler::move_to(Device& device) {
  if (&state_.device() == &device) return;
  copy_on(device);
  const bool was_loaded = is_new();
  state_.rebind(state_.to(device).buffer());
  if (!was_loaded) seen_ = state_.version();
  const auto here =
      std::find_if(copies_.begin(), copies_.end(), [&](const Copy& copy) { return copy.device == &device; });
  std::iter_swap(copies_.begin(), here);
}

LossScaler::Copy& LossScaler::copy_on(Device& device) {
  auto here = std::find_if(copies_.begin(), copies_.end(), [&](const Copy& copy) { return copy.device == &device; });
  if (here == copies_.end()) {
    copies_.push_back({&device, Tensor::zeros({kStepFields}, DType::kFloat32, device), 0});
    here = copies_.end() - 1;
  }
  if (here->number == number_) return *here;
  copies_.front().device->default_stream().synchronize();
  here->step.copy_from(copies_.front().step);
  here->number = number_;
  return *here;
}

const Tensor& LossScaler::state_on(Device& device) {
  const std::lock_guard lock(mutex_);
  move_to(device);
  is_claimed_ = true;
  return state_;
}

LossScaleState* LossScaler::data_on(Device& device) {
  const std::lock_guard lock(mutex_);
  if (!is_claimed_) move_to(device);
  if (is_new()) begin();
  return &step_in(copy_on(device).step)->begin;
}

// If scale() is never used, the second step of an optimizer begins the next step.
void LossScaler::begin_step(const void* optimizer, Device& device) {
  const std::lock_guard lock(mutex_);
  const bool again = std::find(has_stepped_.begin(), has_stepped_.end(), optimizer) != has_stepped_.end();
  if (again || has_stepped_.empty() || is_new()) move_to(device);
  if (again || is_new()) begin();
  is_claimed_ = true;
}

void LossScaler::end_step(const void* optimizer, Device& device) {
  const std::lock_guard lock(mutex_);
  Device& home = state_.device();
  if (&device != &home) {
    Copy& here = copy_on(device);
    constexpr std::size_t kFoundBad = offsetof(LossScaleStep, begin) + offsetof(LossScaleState, found_bad);
    device.default_stream().synchronize();
    field_of(copies_.front().step, kFoundBad).copy_from(field_of(here.step, kFoundBad));
    here.number = 0;
  }
  home.kernels().update_loss_scale(rule_, step_in(copies_.front().step), state_in(state_), home.default_stream());
  state_.mark_changed();
  seen_ = state_.version();
  has_stepped_.push_back(optimizer);
  if (home.default_stream().is_capturing()) return;
  if (home.kind() != DeviceKind::kCpu && ++unchecked_ < options_.max_skips_in_a_row) return;
  unchecked_ = 0;
  check();
}

}  // namespace lockstep::optim
