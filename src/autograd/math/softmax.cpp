#include "lockstep/autograd/softmax.h"

#include "lockstep/autograd/shapes.h"
#include "src/autograd/math/dimensions.h"
#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

// Saved: the result.
class SoftmaxNode : public Node {
 public:
  SoftmaxNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Shape& rows, bool log)
      : Node(std::move(inputs), std::move(saved)), rows_(rows), log_(log) {}
  const char* name() const override { return log_ ? "log_softmax" : "softmax"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .softmax_backward(in_shape(saved(0), rows_), in_shape(result_grad, rows_), log_, out_shape(targets[0], rows_),
                          stream_of(result_grad));
  }

 private:
  Shape rows_;
  bool log_;
};

Tensor softmax_of_rows(const char* operation, const Tensor& given, bool log) {
  check_activation(operation, "x", given);
  const Tensor x = autocast_to_float32(given);
  const Shape rows = rows_of(operation, x);
  const Tensor y = empty_like(x);
  kernels_of(x).softmax(in_shape(x, rows), log, out_shape(y, rows), stream_of(x));
  record<SoftmaxNode>(y, {x}, std::vector{detach(y)}, rows, log);
  return y;
}

Tensor softmax_along(const char* operation, const Tensor& x, int dim, bool log) {
  if (dim == -1) return softmax_of_rows(operation, x, log);
  check_activation(operation, "x", x);
  const auto along = static_cast<int>(dimension_of(operation, dim, x.shape()));
  if (along == static_cast<int>(x.shape().dims()) - 1) return softmax_of_rows(operation, x, log);
  return transpose(softmax_of_rows(operation, transpose(x, along, -1), log), along, -1);
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) { return softmax_along("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, int dim) { return softmax_along("log_softmax", x, dim, true); }

}  // namespace lockstep
