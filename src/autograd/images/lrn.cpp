#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"

namespace lockstep {

namespace {

// Saved: x, the result and the scale, which is float32.
class LrnNode : public Node {
 public:
  LrnNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const LrnParams& params)
      : Node(std::move(inputs), std::move(saved)), params_(params) {}
  const char* name() const override { return "local_response_norm"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"radius", params_.radius},
                      {"bias", double{params_.bias}},
                      {"alpha", double{params_.alpha}},
                      {"beta", double{params_.beta}}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .lrn_backward(params_, saved(0), saved(1), saved(2), result_grad, targets[0], stream_of(result_grad));
  }

 private:
  LrnParams params_;
};

}  // namespace

Tensor local_response_norm(const Tensor& x, const LrnOptions& options) {
  check_activation("local_response_norm", "x", x);
  if (x.shape().dims() == 0) throw InvalidArgument("local_response_norm: x has no channel dimension");
  if (options.radius < 0) throw InvalidArgument("local_response_norm: radius {} is negative", options.radius);
  const std::int64_t channels = x.shape()[x.shape().dims() - 1];
  const LrnParams params{
      channels == 0 ? 0 : x.count() / channels, channels, options.radius, options.bias, options.alpha, options.beta};
  const Tensor y = empty_like(x), scale = empty_like(x, x.shape(), DType::kFloat32);
  kernels_of(x).lrn(params, x, y, scale, stream_of(x));
  record<LrnNode>(y, {x}, std::vector{x, detach(y), scale}, params);
  return y;
}

}  // namespace lockstep
