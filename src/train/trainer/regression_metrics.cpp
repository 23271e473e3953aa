#include "lockstep/train/regression_metrics.h"

#include <cmath>

#include "lockstep/core/error.h"

namespace lockstep::train {

namespace {

// Calls call(output - target) for each element.
template <typename Call>
void for_errors(const char* metric, const Tensor& outputs, const Tensor& targets, const Call& call) {
  if (outputs.shape() != targets.shape() || outputs.dtype() != DType::kFloat32 || targets.dtype() != DType::kFloat32)
    throw InvalidArgument("{}: expected outputs and targets of one shape, float32, got {} {} and {} {}", metric,
                          name_of(outputs.dtype()), outputs.shape().text(), name_of(targets.dtype()),
                          targets.shape().text());
  const auto values = outputs.span<float>(), wanted = targets.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i) call(static_cast<double>(values[i]) - wanted[i]);
}

}  // namespace

void MeanSquaredError::update(const Tensor& outputs, const Tensor& targets) {
  for_errors("MeanSquaredError", outputs, targets, [this](double error) { add(static_cast<float>(error * error)); });
}

double MeanSquaredError::root() const { return std::sqrt(value()); }

void MeanAbsoluteError::update(const Tensor& outputs, const Tensor& targets) {
  for_errors("MeanAbsoluteError", outputs, targets, [this](double error) { add(static_cast<float>(std::abs(error))); });
}

}  // namespace lockstep::train
