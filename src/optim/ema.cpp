#include "lockstep/optim/ema.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels.h"
#include "lockstep/core/log.h"
#include "src/optim/clock.h"
#include "src/optim/swapped_weights.h"
#include "src/tensor/tensor_map.h"

namespace lockstep::optim {

// The scopes of this process in which parameters hold averages, in the order in which they began. If two of them
// swapped the same parameter, the first one keeps its weights.
class SwappedScopes {
 public:
  static void add(const ExponentialMovingAverage& averages) {
    const std::lock_guard lock(all().mutex);
    all().scopes.push_back(&averages);
  }
  static void remove(const ExponentialMovingAverage& averages) {
    const std::lock_guard lock(all().mutex);
    std::erase(all().scopes, &averages);
  }
  static TensorMap<Tensor> weights() {
    TensorMap<Tensor> weights;
    const std::lock_guard lock(all().mutex);
    for (const ExponentialMovingAverage* const scope : all().scopes)
      for (std::size_t i = 0; i < scope->parameters_.size(); ++i)
        weights.emplace(scope->parameters_[i].tensor, scope->weights_[i]);
    return weights;
  }

 private:
  struct All {
    std::mutex mutex;
    std::vector<const ExponentialMovingAverage*> scopes;
  };
  static All& all() {
    static auto* const kAll = new All;  // never destroyed, because a scope may end with the program
    return *kAll;
  }
};

std::vector<NamedTensor> with_weights(std::vector<NamedTensor> tensors) {
  const TensorMap<Tensor> weights = SwappedScopes::weights();
  if (weights.empty()) return tensors;
  for (NamedTensor& entry : tensors)
    if (const Tensor* const waiting = weights.find(entry.tensor)) entry.tensor = *waiting;
  return tensors;
}

std::string first_swapped(const std::vector<NamedTensor>& tensors) {
  const TensorMap<Tensor> weights = SwappedScopes::weights();
  if (weights.empty()) return "";
  for (const NamedTensor& entry : tensors)
    if (weights.find(entry.tensor) != nullptr) return entry.name;
  return "";
}

ExponentialMovingAverage::ExponentialMovingAverage(std::vector<NamedTensor> parameters,
                                                   const ExponentialMovingAverageOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  if (parameters_.empty()) throw InvalidArgument("ExponentialMovingAverage: got no parameters; at least one is needed");
  if (!(options.decay >= 0) || options.decay >= 1)
    throw InvalidArgument("ExponentialMovingAverage: got decay {}, expected at least 0 and below 1", options.decay);
  for (const auto& [name, parameter] : parameters_) averages_.push_back(parameter.clone());
  clock_ = new_clock(parameters_.front().tensor.device());
}

void ExponentialMovingAverage::follow_parameters() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) move_to(parameters_[i].tensor.device(), averages_[i]);
  move_to(parameters_.front().tensor.device(), clock_);
}

void ExponentialMovingAverage::update() {
  if (is_swapped_)
    throw InvalidArgument("ExponentialMovingAverage::update: the parameters hold the averages: end the scope first");
  follow_parameters();
  Device& device = clock_.device();
  std::vector<UpdateTensor> tensors;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    if (&parameter.device() != &device)
      throw InvalidArgument(
          "ExponentialMovingAverage: parameter '{}' is on {}, but the first one is on {}: move the entire module with "
          ".to(device)",
          name, parameter.device().name(), device.name());
    averages_[i].mark_changed();
    tensors.push_back({averages_[i].data<float>(), parameter.data<float>(), {}, parameter.count()});
  }
  device.kernels().update_average(tensors, {clock_in(clock_), options_.decay, options_.ramp}, device.default_stream());
}

ExponentialMovingAverage::Swapped::Swapped(ExponentialMovingAverage& averages) : averages_(averages) {
  if (averages.is_swapped_)
    throw InvalidArgument(
        "ExponentialMovingAverage::swapped: the parameters already hold the averages: end the other scope first");
  averages.follow_parameters();
  for (std::size_t i = 0; i < averages.parameters_.size(); ++i) {
    const Tensor& parameter = averages.parameters_[i].tensor;
    if (averages.weights_.size() == i)
      averages.weights_.push_back(Tensor::empty(parameter.shape(), parameter.dtype(), parameter.device()));
    move_to(parameter.device(), averages.weights_[i]);
    averages.weights_[i].copy_from(parameter);
  }
  averages.is_swapped_ = true;
  SwappedScopes::add(averages);
  for (std::size_t i = 0; i < averages.parameters_.size(); ++i)
    averages.parameters_[i].tensor.copy_from(averages.averages_[i]);
}

ExponentialMovingAverage::Swapped::~Swapped() {
  try {
    for (std::size_t i = 0; i < averages_.parameters_.size(); ++i)
      averages_.parameters_[i].tensor.copy_from(averages_.weights_[i]);
  } catch (const std::exception& error) {
    log::error("ExponentialMovingAverage: the weights could not be restored: {}", error.what());
  }
  SwappedScopes::remove(averages_);
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
