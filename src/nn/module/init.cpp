#include "lockstep/nn/init.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"

namespace lockstep::nn::init {

namespace {

void check_float32(const char* function, const Tensor& tensor) {
  if (!tensor.defined() || tensor.dtype() != DType::kFloat32)
    throw InvalidArgument(
        "init::{}: expected a float32 tensor, got {}", function,
        tensor.defined() ? fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().text()) : "an undefined one");
}

void check_normal(const char* function, const Tensor& tensor, float mean, float standard_deviation) {
  check_float32(function, tensor);
  if (!std::isfinite(mean) || !std::isfinite(standard_deviation) || standard_deviation < 0)
    throw InvalidArgument(
        "init::{}: expected a finite mean and a finite standard deviation of 0 or more, got {} and {}", function, mean,
        standard_deviation);
}

double xavier_deviation(const char* function, const Tensor& weight, float gain) {
  check_float32(function, weight);
  if (!std::isfinite(gain) || gain < 0)
    throw InvalidArgument("init::{}: expected a finite gain of 0 or more, got {}", function, gain);
  const Fans fans = calculate_fans(weight.shape());
  return gain * std::sqrt(2.0 / (static_cast<double>(fans.in) + static_cast<double>(fans.out)));
}

double kaiming_deviation(const char* function, const Tensor& weight, const KaimingOptions& options) {
  check_float32(function, weight);
  const Fans fans = calculate_fans(weight.shape());
  return calculate_gain(options.nonlinearity, options.negative_slope) /
         std::sqrt(static_cast<double>(options.mode == FanMode::kFanIn ? fans.in : fans.out));
}

// Uniform numbers in +-b have the standard deviation b / sqrt(3).
void fill_by_deviation(const Tensor& weight, double standard_deviation) {
  const auto bound = static_cast<float>(std::sqrt(3.0) * standard_deviation);
  fill_uniform(weight, -bound, bound);
}

}  // namespace

void constant(const Tensor& tensor, float value) {
  check_float32("constant", tensor);
  tensor.fill(value);
}
void zeros(const Tensor& tensor) { constant(tensor, 0); }
void ones(const Tensor& tensor) { constant(tensor, 1); }

void uniform(const Tensor& tensor, float low, float high) {
  check_float32("uniform", tensor);
  if (!std::isfinite(low) || !std::isfinite(high) || low > high)
    throw InvalidArgument("init::uniform: expected finite bounds, low <= high, got {} and {}", low, high);
  fill_uniform(tensor, low, high);
}

void normal(const Tensor& tensor, float mean, float standard_deviation) {
  check_normal("normal", tensor, mean, standard_deviation);
  fill_normal(tensor, mean, standard_deviation);
}

void truncated_normal(const Tensor& tensor, float mean, float standard_deviation) {
  check_normal("truncated_normal", tensor, mean, standard_deviation);
  fill_truncated_normal(tensor, mean, standard_deviation);
}

Fans calculate_fans(const Shape& weight) {
  const auto extents = weight.extents();
  if (extents.size() < 2 || std::find(extents.begin(), extents.end(), 0) != extents.end())
    throw InvalidArgument(
        "init::calculate_fans: expected a weight (out, in) or (out, ..., in) without an extent of 0, got {}",
        weight.text());
  const std::int64_t window = weight.count() / extents.front() / extents.back();
  return {extents.back() * window, extents.front() * window};
}

float calculate_gain(Nonlinearity nonlinearity, float negative_slope) {
  switch (nonlinearity) {
    case Nonlinearity::kTanh: return 5.0F / 3;
    case Nonlinearity::kReLU: return std::sqrt(2.0F);
    case Nonlinearity::kLeakyReLU:
      if (!std::isfinite(negative_slope))
        throw InvalidArgument("init::calculate_gain: expected a finite negative slope, got {}", negative_slope);
      return static_cast<float>(std::sqrt(2 / (1 + double{negative_slope} * negative_slope)));
    case Nonlinearity::kSELU: return 0.75F;
    default: return 1;
  }
}

void xavier_uniform(const Tensor& weight, float gain) {
  fill_by_deviation(weight, xavier_deviation("xavier_uniform", weight, gain));
}
void xavier_normal(const Tensor& weight, float gain) {
  fill_normal(weight, 0, static_cast<float>(xavier_deviation("xavier_normal", weight, gain)));
}

void kaiming_uniform(const Tensor& weight, const KaimingOptions& options) {
  fill_by_deviation(weight, kaiming_deviation("kaiming_uniform", weight, options));
}
void kaiming_normal(const Tensor& weight, const KaimingOptions& options) {
  fill_normal(weight, 0, static_cast<float>(kaiming_deviation("kaiming_normal", weight, options)));
}

}  // namespace lockstep::nn::init
