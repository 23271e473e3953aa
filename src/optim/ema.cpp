#include "lockstep/optim/ema.h"

#include <exception>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels.h"
#include "lockstep/core/log.h"
#include "src/optim/clock.h"

namespace lockstep::optim {

ExponentialMovingAverage::ExponentialMovingAverage(std::vector<NamedTensor> parameters, const ExponentialMovingAverageOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  if (parameters_.empty()) throw InvalidArgument("ExponentialMovingAverage: there is no parameter to average");
  if (!(options.decay >= 0) || options.decay >= 1)
    throw InvalidArgument("ExponentialMovingAverage: decay {} must be at least 0 and below 1", options.decay);
  for (const auto& [name, parameter] : parameters_) averages_.push_back(parameter.clone());
  clock_ = new_clock(parameters_.front().tensor.device());
}

void ExponentialMovingAverage::follow_parameters() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) move_to(parameters_[i].tensor.device(), averages_[i]);
  move_to(parameters_.front().tensor.device(), clock_);
}

void ExponentialMovingAverage::update() {
  if (is_swapped_) throw InvalidArgument("ExponentialMovingAverage::update: the parameters hold the averages: end the scope first");
  follow_parameters();
  Device& device = clock_.device();
  std::vector<UpdateTensor> tensors;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    if (&parameter.device() != &device)
      throw InvalidArgument(
          "ExponentialMovingAverage: parameter '{}' is on {}, the first one on {}: move the whole module with .to(device)", name,
          parameter.device().name(), device.name());
    averages_[i].mark_changed();
    tensors.push_back({averages_[i].data<float>(), parameter.data<float>(), {}, parameter.count()});
  }
  device.kernels().update_average(tensors, {clock_in(clock_), options_.decay, options_.ramp}, device.default_stream());
}

ExponentialMovingAverage::Swapped::Swapped(ExponentialMovingAverage& averages) : averages_(averages) {
  if (averages.is_swapped_) throw InvalidArgument("ExponentialMovingAverage::swapped: the parameters hold the averages already");
  averages.follow_parameters();
  for (std::size_t i = 0; i < averages.parameters_.size(); ++i) {
    const Tensor& parameter = averages.parameters_[i].tensor;
    if (averages.weights_.size() == i) averages.weights_.push_back(Tensor::empty(parameter.shape(), parameter.dtype(), parameter.device()));
    move_to(parameter.device(), averages.weights_[i]);
    averages.weights_[i].copy_from(parameter);
  }
  averages.is_swapped_ = true;
  for (std::size_t i = 0; i < averages.parameters_.size(); ++i) averages.parameters_[i].tensor.copy_from(averages.averages_[i]);
}

ExponentialMovingAverage::Swapped::~Swapped() {
  try {
    for (std::size_t i = 0; i < averages_.parameters_.size(); ++i) averages_.parameters_[i].tensor.copy_from(averages_.weights_[i]);
  } catch (const std::exception& error) {
    log::error("ExponentialMovingAverage: the weights could not be put back: {}", error.what());
  }
  averages_.is_swapped_ = false;
}

std::vector<NamedTensor> ExponentialMovingAverage::state() {
  follow_parameters();
  std::vector<NamedTensor> named;
  for (std::size_t i = 0; i < parameters_.size(); ++i) named.push_back({parameters_[i].name + ".ema", averages_[i]});
  named.push_back({"ema.clock", clock_});
  return named;
}

}  // namespace lockstep::optim
