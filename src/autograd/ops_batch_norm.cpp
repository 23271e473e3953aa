#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/normalization.h"

namespace lockstep {

namespace {

// Inputs: x, weight, bias (the latter maybe undefined). Saved: x, mean, variance, weight, bias.
class BatchNormNode : public Node {
 public:
  BatchNormNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const BatchNormParams& params)
      : Node(std::move(inputs), std::move(saved)), params_(params) {}
  const char* name() const override { return "batch_norm"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .batch_norm_backward(params_, saved(0), result_grad, saved(1), saved(2), saved(3), saved(4), targets[0], targets[1], targets[2],
                             stream_of(result_grad));
  }

 private:
  BatchNormParams params_;
};

void check_channels(const char* what, const Tensor& values, const Tensor& x) {
  if (!values.defined()) return;
  check_input("batch_norm", what, values, 1, &x.device());
  const std::int64_t channels = x.shape()[x.shape().dims() - 1];
  if (values.count() != channels)
    throw InvalidArgument("batch_norm: {} {} does not match the {} channels of x {}", what, values.shape().text(), channels,
                          x.shape().text());
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

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean, const Tensor& running_variance,
                  const BatchNormOptions& options) {
  check_activation("batch_norm", "x (..., C)", x);
  if (x.shape().dims() < 2) throw InvalidArgument("batch_norm: x must have 2 dimensions or more, got {}", x.shape().text());
  check_channels("weight (C)", weight, x);
  check_channels("bias (C)", bias, x);
  check_channels("running_mean (C)", running_mean, x);
  check_channels("running_variance (C)", running_variance, x);
  const std::int64_t channels = x.shape()[x.shape().dims() - 1], rows = channels == 0 ? 0 : x.count() / channels;
  if (running_mean.defined() != running_variance.defined())
    throw InvalidArgument("batch_norm: running_mean and running_variance go together: one of them is undefined");
  if (!options.training && !running_mean.defined())
    throw InvalidArgument("batch_norm: evaluation needs running_mean and running_variance, which are undefined");
  if (options.training && rows < 2)
    throw InvalidArgument("batch_norm: x {} has {} values for each channel, training needs 2 at least: a larger batch, or eval()",
                          x.shape().text(), rows);
  Tensor mean = running_mean, variance = running_variance;
  if (options.training) {
    mean = empty_like(x, {channels}, DType::kFloat32);
    variance = empty_like(x, {channels}, DType::kFloat32);
    kernels_of(x).batch_norm_statistics(x, mean, variance, stream_of(x));
    if (running_mean.defined() && !recomputing()) {
      follow(running_mean, mean, options.momentum, 1);
      follow(running_variance, variance, options.momentum, static_cast<float>(rows) / static_cast<float>(rows - 1));
    }
  }
  const BatchNormParams params{options.eps, options.relu, !options.training};
  const Tensor y = empty_like(x);
  kernels_of(x).batch_norm(params, x, mean, variance, weight, bias, y, stream_of(x));
  record<BatchNormNode>(y, {x, weight, bias}, std::vector{x, mean, variance, weight, bias}, params);
  return y;
}

}  // namespace lockstep
