#include "lockstep/optim/sgd.h"

#include <array>
#include <cmath>
#include <span>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"

namespace lockstep::optim {

SGD::SGD(std::vector<NamedTensor> parameters, const SGDOptions& options) : Optimizer(std::move(parameters)), options_(options) {
  const auto is_usable = [](float value) { return std::isfinite(value) && value >= 0; };
  if (!is_rate(options.lr) || !is_usable(options.momentum) || !is_usable(options.weight_decay))
    throw InvalidArgument("SGD: lr {}, momentum {} and weight_decay {} must be finite numbers and not negative", options.lr,
                          options.momentum, options.weight_decay);
  if (options.nesterov && options.momentum == 0) throw InvalidArgument("SGD: nesterov needs a momentum above 0");
  Device& device = parameters_.front().tensor.device();
  lr_ = Tensor::from<float>(std::array{options.lr}, {1}).to(device);
  if (options.momentum != 0)
    for (const NamedTensor& parameter : parameters_) momenta_.push_back(Tensor::zeros(parameter.tensor.shape(), DType::kFloat32, device));
  follow_parameters();
  tensors_.reserve(parameters_.size());
}

void SGD::set_lr(float lr) {
  if (!is_rate(lr)) throw InvalidArgument("SGD::set_lr: lr {} must be a finite number and not negative", lr);
  if (lr == options_.lr) return;
  Device& device = lr_.device();
  if (device.default_stream().is_capturing())
    throw InvalidArgument(
        "SGD::set_lr: a graph would repeat lr {} in every step: set the rate before the step, outside of what is recorded", lr);
  device.upload(lr_.data<float>(), &lr, sizeof lr, device.default_stream());
  options_.lr = lr;
}

void SGD::step() {
  follow_parameters();
  tensors_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i].tensor;
    if (!has_grad(parameter)) continue;
    parameter.mark_changed();
    tensors_.push_back({parameter.data<float>(), grad(parameter).data<float>(), momenta_.empty() ? nullptr : momenta_[i].data<float>(),
                        parameter.count()});
  }
  Device& device = parameters_.front().tensor.device();
  const KernelTable& kernels = device.kernels();
  Stream& stream = device.default_stream();
  SgdParams params{lr_.data<float>(), options_.momentum, options_.weight_decay, options_.nesterov};
  if (options_.loss_scaler == nullptr) return kernels.sgd_step(tensors_, params, stream);
  LossScaleState* const state = options_.loss_scaler->data_on(device);
  params.loss_scale = state;
  kernels.find_bad_gradients(tensors_, state, stream);
  kernels.sgd_step(tensors_, params, stream);
  kernels.update_loss_scale(options_.loss_scaler->rule(), state, stream);
}

// A module that moved to another device takes its momenta and the rate along.
void SGD::follow_parameters() {
  Device& device = parameters_.front().tensor.device();
  if (&lr_.device() != &device) lr_.rebind(lr_.to(device).buffer());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    if (&parameter.device() != &device)
      throw InvalidArgument("SGD: parameter '{}' is on {}, the first one on {}: move the whole module with .to(device)", name,
                            parameter.device().name(), device.name());
    if (!momenta_.empty() && &momenta_[i].device() != &device) momenta_[i].rebind(momenta_[i].to(device).buffer());
  }
}

std::vector<NamedTensor> SGD::state() {
  std::vector<NamedTensor> named;
  for (std::size_t i = 0; i < momenta_.size(); ++i) named.push_back({parameters_[i].name + ".momentum", momenta_[i]});
  if (options_.loss_scaler != nullptr)
    named.push_back({"loss_scaler.state", options_.loss_scaler->state_on(parameters_.front().tensor.device())});
  return named;
}

}  // namespace lockstep::optim
