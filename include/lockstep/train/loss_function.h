// The loss of a training: a function that returns a scalar, the mean over the given samples, from outputs and targets,
// or from the model, outputs and targets.
//
//   .loss = nn::cross_entropy
//   .loss = [](const Tensor& outputs, const Tensor& targets) { return nn::mse_loss(outputs, targets); }
//   .loss = [](nn::Module& model, const Tensor& outputs, const Tensor& targets) {   // weight decay as a loss
//     return nn::cross_entropy(outputs, targets) + 1e-4f * l2_loss(dynamic_cast<Net&>(model).hidden.weight);
//   }
//
// The model is the copy that computed the outputs, on its device; with data_parallel the copy on the first device,
// where the outputs are gathered. A module that knows its penalty itself calls add_loss() (nn/added_losses.h) instead.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

class LossFunction {
 public:
  LossFunction() = default;  // empty: calls throw std::bad_function_call
  LossFunction(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)

  template <typename Function>
  requires(!std::same_as<std::remove_cvref_t<Function>, LossFunction> &&
           std::is_invocable_r_v<Tensor, Function&, const Tensor&, const Tensor&>)
      LossFunction(Function function)  // NOLINT(google-explicit-constructor)
      : of_outputs_(std::move(function)) {}

  template <typename Function>
  requires(!std::same_as<std::remove_cvref_t<Function>, LossFunction> &&
           !std::is_invocable_r_v<Tensor, Function&, const Tensor&, const Tensor&> &&
           std::is_invocable_r_v<Tensor, Function&, nn::Module&, const Tensor&, const Tensor&>)
      LossFunction(Function function)  // NOLINT(google-explicit-constructor)
      : of_model_(std::move(function)) {}

  // nn::cross_entropy, nn::mse_loss, ..., with their default options.
  template <typename Options>
  LossFunction(Tensor (*function)(const Tensor&, const Tensor&, const Options&))  // NOLINT(google-explicit-constructor)
      : of_outputs_([function](const Tensor& outputs, const Tensor& targets) {
          return function(outputs, targets, Options());
        }) {}

  Tensor operator()(nn::Module& model, const Tensor& outputs, const Tensor& targets) const {
    return of_model_ ? of_model_(model, outputs, targets) : of_outputs_(outputs, targets);
  }
  bool sees_model() const { return static_cast<bool>(of_model_); }
  explicit operator bool() const { return of_outputs_ || of_model_; }

 private:
  std::function<Tensor(const Tensor& outputs, const Tensor& targets)> of_outputs_;
  std::function<Tensor(nn::Module& model, const Tensor& outputs, const Tensor& targets)> of_model_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
