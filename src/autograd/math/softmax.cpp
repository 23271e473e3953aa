#include "lockstep/autograd/softmax.h"

#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

// Saved: the result.
class SoftmaxNode : public Node {
 public:
  SoftmaxNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Shape& rows, bool log)
      : Node(std::move(inputs), std::move(saved)), rows_(rows), log_(log) {}
  const char* name() const override { return log_ ? "log_softmax" : "softmax"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .softmax_backward(in_shape(saved(0), rows_), in_shape(result_grad, rows_), log_, out_shape(targets[0], rows_),
                          stream_of(result_grad));
  }

 private:
  Shape rows_;
  bool log_;
};

Tensor softmax_of(const char* operation, const Tensor& given, bool log) {
  check_activation(operation, "x", given);
  const Tensor x = autocast_to_float32(given);
  const Shape rows = rows_of(operation, x);
  const Tensor y = empty_like(x);
  kernels_of(x).softmax(in_shape(x, rows), log, out_shape(y, rows), stream_of(x));
  record<SoftmaxNode>(y, {x}, std::vector{detach(y)}, rows, log);
  return y;
}

}  // namespace

Tensor softmax(const Tensor& x) { return softmax_of("softmax", x, false); }
Tensor log_softmax(const Tensor& x) { return softmax_of("log_softmax", x, true); }

}  // namespace lockstep
