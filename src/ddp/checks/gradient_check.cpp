#include "src/ddp/checks/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/kernels.h"

namespace lockstep {

namespace {

// Returns the largest norm that is not clipped.
float limit_of(const DistributedDataParallelOptions& options) {
  if (options.max_grad_norm > 0) return options.max_grad_norm;
  return options.on_nonfinite_gradient == OnNonfiniteGradient::kIgnore ? 0 : INFINITY;
}

NormResult* norm_in(const Tensor& result) {
  static_assert(sizeof(NormResult) == 2 * sizeof(float) && offsetof(NormResult, norm) == 0);
  return reinterpret_cast<NormResult*>(result.data<float>());
}

}  // namespace

GradientCheck::GradientCheck(ProcessGroup& group, const std::vector<NamedTensor>& parameters, TensorGradients& owner,
                             const DistributedDataParallelOptions& options)
    : group_(group),
      parameters_(parameters),
      max_norm_(limit_of(options)),
      loss_scaler_(options.loss_scaler),
      hook_(options.comm_hook),
      nonfinite_(group, "DistributedDataParallel", owner, options.on_nonfinite_gradient, options.comm_hook) {}

ReducerOptions GradientCheck::watching(ReducerOptions options) {
  if (can_stop() && group_.world_size() > 1)
    options.before_reduction = [this](std::size_t bucket) { sum_squares(bucket, tensors_, own_sums_); };
  if (is_on()) options.after_reduction = [this](std::size_t bucket) { sum_squares(bucket, averages_, sums_); };
  return options;
}

void GradientCheck::set_partial(const Reducer& reducer, PartialAverages* partial) {
  partial_ = partial;
  follow(reducer);
}

void GradientCheck::follow(const Reducer& reducer) {
  if (!is_on()) return;
  order_.clear();
  tensors_.clear();
  averages_.clear();
  begins_.clear();
  for (const BucketLayout& layout : reducer.buckets()) {
    begins_.push_back(order_.size());
    for (const Slot& slot : layout.slots) {
      auto* const values = reinterpret_cast<float*>(reducer.slot(slot.gradient).data());
      order_.push_back(slot.gradient);
      tensors_.push_back({values, values, {}, parameters_[slot.gradient].tensor.count()});
      averages_.push_back(tensors_.back());
      if (partial_ == nullptr || partial_->keeps_own()) continue;
      const auto [begin, count] = partial_->range_of(slot.gradient);
      averages_.back() = {values + begin, values + begin, {}, static_cast<std::int64_t>(count)};
    }
  }
  begins_.push_back(order_.size());
  if (device_ != nullptr) return;
  nonfinite_.check_hook();
  device_ = &parameters_.front().tensor.device();
  const auto count = static_cast<std::int64_t>(order_.size());
  sums_ = Tensor::zeros({count}, DType::kFloat64, *device_);
  if (can_stop()) own_sums_ = Tensor::zeros({count}, DType::kFloat64, *device_);
  host_sums_.resize(order_.size());
  result_ = Tensor::zeros({2}, DType::kFloat32, *device_);
  present_.reserve(order_.size());
}

void GradientCheck::sum_squares(std::size_t bucket, const Tensors& tensors, const Tensor& sums) const {
  if (partial_ != nullptr && partial_->keeps_own()) return;  // report() and the partner read them
  const std::size_t begin = begins_[bucket], end = begins_[bucket + 1];
  device_->kernels().square_sums(std::span(tensors).subspan(begin, end - begin), sums.data<double>() + begin,
                                 device_->default_stream());
}

void GradientCheck::finish(std::uint64_t step) {
  if (!is_on()) return;
  if (partial_ != nullptr) partial_->sum_squares(sums_);
  take_norm();
  if (can_stop()) {
    if (nonfinite_.is_any(has_nonfinite(sums_))) return stop(step);
  }
  if (std::isfinite(max_norm_) && (partial_ == nullptr || !partial_->keeps_own())) clip();
}

const float* GradientCheck::clip_factor() const {
  return is_on() && std::isfinite(max_norm_) ? &norm_in(result_)->factor : nullptr;
}

void GradientCheck::stop(std::uint64_t step) {
  std::string text = report(step);
  drop_gradients();
  nonfinite_.stop(std::move(text), /*lowers_scale=*/loss_scaler_ != nullptr);
}

// A gradient that no rank has computed is zero in its bucket, but a hook may change it, so it is not counted.
void GradientCheck::take_norm() {
  const KernelTable& kernels = device_->kernels();
  Stream& stream = device_->default_stream();
  for (std::size_t k = 0; hook_ && k < order_.size(); ++k)
    if (!wants_and_has_grad(parameters_[order_[k]].tensor))
      kernels.fill({reinterpret_cast<float*>(sums_.data<double>() + k), {sizeof(double) / sizeof(float)}}, 0, stream);
  const NormParams params{max_norm_, loss_scaler_ == nullptr ? nullptr : loss_scaler_->data_on(*device_)};
  kernels.norm_of_sums(sums_.data<double>(), sums_.count(), params, norm_in(result_), stream);
}

void GradientCheck::clip() {
  const float* const factor = &norm_in(result_)->factor;
  if (device_->kind() == DeviceKind::kCpu && *factor == 1) return;
  present_.clear();
  for (std::size_t k = 0; k < order_.size(); ++k) {
    const Tensor& parameter = parameters_[order_[k]].tensor;
    if (!wants_and_has_grad(parameter)) continue;
    grad(parameter).mark_changed();
    if (averages_[k].count > 0) present_.push_back(averages_[k]);
  }
  device_->kernels().scale_gradients(present_, {factor}, device_->default_stream());
}

// Blocks until the device is done.
bool GradientCheck::has_nonfinite(const Tensor& sums) {
  Stream& stream = device_->default_stream();
  device_->copy(host_sums_.data(), sums.data<double>(), sums.bytes(), stream);
  stream.synchronize();
  return std::any_of(host_sums_.begin(), host_sums_.end(), [](double sum) { return !std::isfinite(sum); });
}

// Exchanges which rank has which bad gradients. Only done now, because it is rare.
std::string GradientCheck::report(std::uint64_t step) {
  const std::size_t count = parameters_.size();
  std::vector<std::uint8_t> mine(count);
  const auto note = [&](const Tensor& sums, unsigned bit) {
    if (!has_nonfinite(sums)) return;
    for (std::size_t k = 0; k < count; ++k)
      if (!std::isfinite(host_sums_[k])) mine[order_[k]] = static_cast<std::uint8_t>(mine[order_[k]] | bit);
  };
  note(sums_, kAverageIsBad);
  if (partial_ != nullptr && partial_->keeps_own())
    device_->kernels().square_sums(tensors_, own_sums_.data<double>(), device_->default_stream());
  note(group_.world_size() == 1 ? sums_ : own_sums_, kOwnIsBad);
  return nonfinite_.report(mine, step);
}

// Without gradients an optimizer changes nothing; with a loss scaler it lowers the scale.
void GradientCheck::drop_gradients() {
  for (const NamedTensor& parameter : parameters_)
    if (requires_grad(parameter.tensor)) clear_grad(parameter.tensor);
  if (loss_scaler_ == nullptr) return;
  constexpr float kFound = 1;
  device_->upload(&loss_scaler_->data_on(*device_)->found_bad, &kFound, sizeof kFound, device_->default_stream());
}

float GradientCheck::last_norm() const {
  if (!is_on())
    throw InvalidArgument(
        "DistributedDataParallel::last_grad_norm: it is not computed: set .max_grad_norm (INFINITY: without "
        "clipping)");
  return Tensor::wrap(result_.buffer().window(0, sizeof(float)), {}).item();
}

}  // namespace lockstep
