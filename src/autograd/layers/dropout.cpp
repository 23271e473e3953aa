#include "lockstep/autograd/dropout.h"

#include <vector>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/tensor/random.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

class DropoutNode : public Node {
 public:
  DropoutNode(std::vector<Tensor> inputs, const DropoutParams& params) : Node(std::move(inputs)), params_(params) {}
  const char* name() const override { return "dropout"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).dropout(params_, result_grad, targets[0], stream_of(result_grad));
  }

 private:
  DropoutParams params_;
};

void check_probability(const char* name, float p) {
  if (!(p >= 0 && p < 1)) throw InvalidArgument("{}: p must be in [0, 1), got {}", name, p);
}

}  // namespace

Tensor dropout(const Tensor& x, float p, bool training) {
  check_activation("dropout", "x", x);
  check_probability("dropout", p);
  if (!training || p == 0) return x;
  if (stream_of(x).is_capturing())
    throw InvalidArgument(
        "dropout: a graph would replay the same mask in every step; run steps with dropout eagerly, not as a graph");
  const DropoutDraw draw = next_dropout();
  const std::int64_t samples = x.shape().dims() == 0 ? 1 : x.shape()[0],
                     sample_elements = samples == 0 ? 0 : x.count() / samples;
  DropoutParams params{p, draw.seed, draw.stream, draw.samples.first * sample_elements};
  if (draw.samples.stride > 1 && samples > 1) {
    params.row_elements = sample_elements;
    params.skipped = (draw.samples.stride - 1) * sample_elements;
  }
  const Tensor y = empty_like(x);
  kernels_of(x).dropout(params, x, y, stream_of(x));
  record<DropoutNode>(y, {x}, params);
  return y;
}

Tensor dropout_channels(const Tensor& x, float p, bool training) {
  check_activation("dropout_channels", "x (N, ..., C)", x);
  check_probability("dropout_channels", p);
  const std::size_t dims = x.shape().dims();
  if (dims < 2) throw InvalidArgument("dropout_channels: x (N, ..., C) expected, got {}", x.shape().text());
  if (!training || p == 0) return x;
  std::vector<std::int64_t> extents(dims, 1);
  extents.front() = x.shape()[0], extents.back() = x.shape()[dims - 1];
  const Tensor ones = filled_like(empty_like(x, Shape(std::span<const std::int64_t>(extents))), 1);
  return mul(x, dropout(ones, p));
}

}  // namespace lockstep
