#include <algorithm>
#include <cmath>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/normalization.h"

namespace lockstep {

namespace {

// Inputs: x, weight, bias (weight and bias may be undefined). Saved: x, mean, variance, weight, bias.
class BatchNormNode : public Node {
 public:
  BatchNormNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const BatchNormParams& params)
      : Node(std::move(inputs), std::move(saved)), params_(params) {}
  const char* name() const override { return "batch_norm"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"constant_statistics", std::int64_t{params_.constant_statistics}},
                      {"eps", double{params_.eps}},
                      {"relu", std::int64_t{params_.relu}}};
  }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .batch_norm_backward(params_, saved(0), result_grad, saved(1), saved(2), saved(3), saved(4), targets[0],
                             targets[1], targets[2], stream_of(result_grad));
  }

 private:
  BatchNormParams params_;
};

void check_channels(const char* what, const Tensor& values, const Tensor& x) {
  if (!values.defined()) return;
  check_input("batch_norm", what, values, 1, &x.device());
  const std::int64_t channels = x.shape()[x.shape().dims() - 1];
  if (values.count() != channels)
    throw InvalidArgument("batch_norm: {} {} does not match the {} channels of x {}", name_argument(what, values),
                          values.shape().text(), channels, x.shape().text());
}

void read_floats(const Tensor& values, double* to) {
  const Tensor host = values.to(cpu_device());
  std::copy(host.span<float>().begin(), host.span<float>().end(), to);
}

// A part of a batch: its gradients also flow through the statistics of all parts. Inputs and saved tensors as above.
//
// With g = dy where y was not clamped, xhat = (x - mean) * r, r = 1 / sqrt(variance + eps), and sums over the `rows` of
// all parts:
//   dx = weight * r * g - (weight * r / rows) * (sum g + xhat * sum g * xhat).
// The kernel for constant statistics computes the first term and the sums of this part. The second term, except for its
// sign, is a batch normalisation of x with another weight and bias. The gradients of weight and bias are those of this
// part: they are averaged later, like those of any parameter.
class PartialBatchNormNode : public Node {
 public:
  PartialBatchNormNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const BatchNormParams& params,
                       std::int64_t rows, std::shared_ptr<StatisticsExchange> exchange)
      : Node(std::move(inputs), std::move(saved)), params_(params), rows_(rows), exchange_(std::move(exchange)) {}
  const char* name() const override { return "batch_norm"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const Tensor &x = saved(0), &mean = saved(1);
    const Tensor x_grad = targets[0] ? empty_like(x) : Tensor();
    const Tensor products = empty_like(mean), sums = empty_like(mean);
    const BatchNormParams constant{params_.eps, params_.relu, true};
    kernels_of(x).batch_norm_backward(constant, x, result_grad, mean, saved(2), saved(3), saved(4), x_grad, products,
                                      sums, stream_of(x));
    if (targets[0]) {
      const Tensor rest = through_statistics(products, sums);
      kernels_of(x).add(x_grad, rest, x_grad, stream_of(x));
      targets[0].give(x_grad);
    }
    if (targets[1]) targets[1].give(products);
    if (targets[2]) targets[2].give(sums);
  }

 private:
  Tensor through_statistics(const Tensor& products, const Tensor& sums) const {
    const auto channels = static_cast<std::size_t>(sums.count());
    std::vector<double> totals(2 * channels);
    read_floats(sums, totals.data());
    read_floats(products, totals.data() + channels);
    exchange_->add_up(totals);
    const Tensor variance = saved(2).to(cpu_device()),
                 weight = saved(3).defined() ? saved(3).to(cpu_device()) : Tensor();
    const Tensor slope = Tensor::empty({sums.count()}, DType::kFloat32, cpu_device()),
                 offset = Tensor::empty({sums.count()}, DType::kFloat32, cpu_device());
    for (std::size_t c = 0; c < channels; ++c) {
      const double share = -(weight.defined() ? weight.span<float>()[c] : 1.0) / static_cast<double>(rows_);
      const double inverse = 1 / std::sqrt(static_cast<double>(variance.span<float>()[c]) + params_.eps);
      slope.span<float>()[c] = static_cast<float>(share * inverse * totals[channels + c]);
      offset.span<float>()[c] = static_cast<float>(share * inverse * totals[c]);
    }
    const Tensor& x = saved(0);
    const Tensor rest = empty_like(x);
    kernels_of(x).batch_norm({params_.eps, false, true}, x, saved(1), saved(2), slope.to(x.device()),
                             offset.to(x.device()), rest, stream_of(x));
    return rest;
  }

  BatchNormParams params_;
  std::int64_t rows_;  // of all parts
  std::shared_ptr<StatisticsExchange> exchange_;
};

// Combines mean and variance of all parts, in float64 (Chan, Golub & LeVeque 1983, "Algorithms for computing the sample
// variance"). Returns the rows of all parts.
std::int64_t join_statistics(StatisticsExchange& exchange, std::int64_t rows, const Tensor& mean,
                             const Tensor& variance) {
  const auto channels = static_cast<std::size_t>(mean.count());
  std::vector<double> own(1 + 2 * channels);  // the rows, means, variances
  own[0] = static_cast<double>(rows);
  if (rows > 0) {  // otherwise they were not computed
    read_floats(mean, own.data() + 1);
    read_floats(variance, own.data() + 1 + channels);
  }
  const std::vector<double> parts = exchange.gather(own);
  const Tensor means = Tensor::zeros({mean.count()}, DType::kFloat32, cpu_device()),
               variances = Tensor::zeros({mean.count()}, DType::kFloat32, cpu_device());
  double all_rows = 0;
  for (std::size_t part = 0; part < parts.size(); part += own.size()) all_rows += parts[part];
  for (std::size_t c = 0; c < channels && all_rows > 0; ++c) {
    double sum = 0, squares = 0;
    for (std::size_t part = 0; part < parts.size(); part += own.size()) sum += parts[part] * parts[part + 1 + c];
    const double center = sum / all_rows;
    for (std::size_t part = 0; part < parts.size(); part += own.size()) {
      const double offset = parts[part + 1 + c] - center;
      squares += parts[part] * (parts[part + 1 + channels + c] + offset * offset);
    }
    means.span<float>()[c] = static_cast<float>(center);
    variances.span<float>()[c] = static_cast<float>(squares / all_rows);
  }
  mean.copy_from(means);
  variance.copy_from(variances);
  return static_cast<std::int64_t>(all_rows);
}

// running = (1 - momentum) * running + momentum * factor * of_batch
void follow(const Tensor& running, const Tensor& of_batch, float momentum, float factor) {
  running.mark_changed();
  const KernelTable& kernels = kernels_of(running);
  OutputView sum = running;
  kernels.scale(running, 1 - momentum, sum, stream_of(running));
  sum.accumulate = true;
  kernels.scale(of_batch, momentum * factor, sum, stream_of(running));
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, const BatchNormOptions& options) {
  check_activation("batch_norm", "x (..., C)", x);
  if (x.shape().dims() < 2)
    throw InvalidArgument("batch_norm: x must have 2 dimensions or more, got {}", x.shape().text());
  check_channels("weight (C)", weight, x);
  check_channels("bias (C)", bias, x);
  check_channels("running_mean (C)", running_mean, x);
  check_channels("running_var (C)", running_var, x);
  const std::int64_t channels = x.shape()[x.shape().dims() - 1], rows = channels == 0 ? 0 : x.count() / channels;
  if (running_mean.defined() != running_var.defined())
    throw InvalidArgument("batch_norm: running_mean and running_var must both be defined, or neither");
  if (!options.training && !running_mean.defined())
    throw InvalidArgument("batch_norm: evaluation needs running_mean and running_var, which are undefined");
  if (!(options.eps >= 0)) throw InvalidArgument("batch_norm: eps must not be negative, got {}", options.eps);
  if (!(options.momentum >= 0 && options.momentum <= 1))
    throw InvalidArgument("batch_norm: momentum must be in [0, 1], got {}", options.momentum);
  Tensor mean = running_mean, variance = running_var;
  std::int64_t all_rows = rows;
  if (options.training) {
    mean = empty_like(x, {channels}, DType::kFloat32);
    variance = empty_like(x, {channels}, DType::kFloat32);
    if (rows > 0) kernels_of(x).batch_norm_statistics(x, mean, variance, stream_of(x));
    if (options.exchange) all_rows = join_statistics(*options.exchange, rows, mean, variance);
    if (all_rows < 2)
      throw InvalidArgument(
          "batch_norm: x {} has {} values for each channel, but training needs at least 2{}: use a larger batch, or "
          "eval()",
          x.shape().text(), all_rows, options.exchange ? ", on all ranks together" : "");
    if (running_mean.defined() && !recomputing()) {
      follow(running_mean, mean, options.momentum, 1);
      follow(running_var, variance, options.momentum, static_cast<float>(all_rows) / static_cast<float>(all_rows - 1));
    }
  }
  const BatchNormParams params{options.eps, options.relu, !options.training};
  const Tensor y = empty_like(x);
  kernels_of(x).batch_norm(params, x, mean, variance, weight, bias, y, stream_of(x));
  const std::vector<Tensor> saved = {x, mean, variance, weight, bias};
  if (options.training && options.exchange)
    record<PartialBatchNormNode>(y, {x, weight, bias}, saved, params, all_rows, options.exchange);
  else
    record<BatchNormNode>(y, {x, weight, bias}, saved, params);
  return y;
}

}  // namespace lockstep
