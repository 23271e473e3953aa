#include "lockstep/autograd/dropout.h"

#include "lockstep/autograd/extend.h"
#include "lockstep/tensor/random.h"

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

}  // namespace

Tensor dropout(const Tensor& x, float p, bool training) {
  check_activation("dropout", "x", x);
  if (!(p >= 0 && p < 1)) throw InvalidArgument("dropout: p must be in [0, 1), got {}", p);
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

}  // namespace lockstep
