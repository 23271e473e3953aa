#include "lockstep/optim/clip.h"

#include <cmath>
#include <cstddef>
#include <unordered_set>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/kernels.h"

namespace lockstep::optim {

namespace {

// Returns the existing gradients as update tensors. A parameter with two names (tied weights) has one gradient.
std::vector<UpdateTensor> gradients_of(const char* call, const std::vector<NamedTensor>& parameters) {
  if (parameters.empty()) throw InvalidArgument("{}: got no parameters; at least one is needed", call);
  std::vector<UpdateTensor> tensors;
  std::unordered_set<const float*> known;
  Device& device = parameters.front().tensor.device();
  for (const auto& [name, parameter] : parameters) {
    if (&parameter.device() != &device)
      throw InvalidArgument(
          "{}: parameter '{}' is on {}, but the first one is on {}: move the entire module with .to(device)", call,
          name, parameter.device().name(), device.name());
    if (!has_grad(parameter)) continue;
    const Tensor gradient = grad(parameter);
    if (gradient.count() == 0 || !known.insert(gradient.data<float>()).second) continue;
    gradient.mark_changed();
    tensors.push_back({gradient.data<float>(), gradient.data<float>(), {}, gradient.count()});
  }
  return tensors;
}

}  // namespace

Tensor clip_grad_norm(const std::vector<NamedTensor>& parameters, float max_norm, const ClipOptions& options) {
  if (!std::isfinite(max_norm) || !(max_norm > 0))
    throw InvalidArgument("clip_grad_norm: got max_norm {}, expected a finite number above 0", max_norm);
  if (options.error_if_nonfinite && options.loss_scaler != nullptr)
    throw InvalidArgument(
        "clip_grad_norm: error_if_nonfinite cannot be combined with a loss_scaler, which skips such a step");
  const std::vector<UpdateTensor> tensors = gradients_of("clip_grad_norm", parameters);
  Device& device = parameters.front().tensor.device();
  Stream& stream = device.default_stream();
  static_assert(sizeof(NormResult) == 2 * sizeof(float) && offsetof(NormResult, norm) == 0);
  const Tensor result = Tensor::empty({2}, DType::kFloat32, device);
  auto* const values = reinterpret_cast<NormResult*>(result.data<float>());
  const NormParams params{max_norm, options.loss_scaler == nullptr ? nullptr : options.loss_scaler->data_on(device)};
  device.kernels().gradient_norm(tensors, params, values, stream);
  Tensor norm = Tensor::wrap(result.buffer().window(0, sizeof(float)), {});
  if (options.error_if_nonfinite)
    if (const float value = norm.item(); !std::isfinite(value))
      throw Error("clip_grad_norm: the norm of all gradients is {}: one of them is infinite or NaN", value);
  device.kernels().scale_gradients(tensors, {&values->factor}, stream);
  return norm;
}

void clip_grad_value(const std::vector<NamedTensor>& parameters, float limit, const ClipOptions& options) {
  if (!std::isfinite(limit) || !(limit > 0))
    throw InvalidArgument("clip_grad_value: got limit {}, expected a finite number above 0", limit);
  const std::vector<UpdateTensor> tensors = gradients_of("clip_grad_value", parameters);
  Device& device = parameters.front().tensor.device();
  const ClampParams params{limit, options.loss_scaler == nullptr ? nullptr : options.loss_scaler->data_on(device)};
  device.kernels().clamp_gradients(tensors, params, device.default_stream());
}

}  // namespace lockstep::optim
