#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"

namespace lockstep {

namespace {

// Saved: probabilities, labels.
class CrossEntropyNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "softmax_cross_entropy"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const Tensor &probabilities = saved(0), &labels = saved(1);
    kernels_of(result_grad)
        .softmax_cross_entropy_backward(probabilities.data<float>(), labels.data<std::int64_t>(), probabilities.shape()[0],
                                        probabilities.shape()[1], result_grad.data<float>(), targets[0].data(), targets[0].accumulate(),
                                        stream_of(result_grad));
  }
};

// Saved: x.
class L2LossNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "l2_loss"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .scale_by(saved(0).data<float>(), result_grad.data<float>(), targets[0].data(), saved(0).count(), targets[0].accumulate(),
                  stream_of(result_grad));
  }
};

// On the CPU the labels are at hand. On a GPU the host would have to wait for them: one outside makes the loss NaN there.
void check_labels(const Tensor& labels, std::int64_t classes) {
  if (labels.device().kind() != DeviceKind::kCpu) return;
  const auto values = labels.span<std::int64_t>();
  for (std::size_t row = 0; row < values.size(); ++row)
    if (values[row] < 0 || values[row] >= classes)
      throw InvalidArgument("softmax_cross_entropy: label {} in row {} is outside 0..{}", values[row], row, classes - 1);
}

}  // namespace

Tensor softmax_cross_entropy(const Tensor& scores, const Tensor& labels) {
  check_activation("softmax_cross_entropy", "logits (N, K)", scores, 2);
  const Tensor logits = cast(scores, DType::kFloat32);
  const std::int64_t batch = logits.shape()[0], classes = logits.shape()[1];
  if (!labels.defined() || labels.dtype() != DType::kInt64 || labels.shape() != Shape{batch})
    throw InvalidArgument("softmax_cross_entropy: labels must be int64 ({}), got {}", batch,
                          labels.defined() ? fmt::format("{} {}", name_of(labels.dtype()), labels.shape().text()) : "an undefined tensor");
  if (&labels.device() != &logits.device())
    throw InvalidArgument(
        "softmax_cross_entropy: labels are on {}, logits on {}: move a module or a tensor with .to(device), batches with "
        "DataLoaderOptions::device",
        labels.device().name(), logits.device().name());
  if (batch == 0 || classes == 0)
    throw InvalidArgument("softmax_cross_entropy: logits {} are empty: their mean loss is undefined", logits.shape().text());
  check_labels(labels, classes);
  const Tensor loss = Tensor::empty({}, DType::kFloat32, logits.device());
  const Tensor probabilities = Tensor::empty(logits.shape(), DType::kFloat32, logits.device());
  kernels_of(logits).softmax_cross_entropy(logits.data<float>(), labels.data<std::int64_t>(), batch, classes, loss.data<float>(),
                                           probabilities.data<float>(), stream_of(logits));
  record<CrossEntropyNode>(loss, {logits}, std::vector{probabilities, labels});
  return loss;
}

Tensor l2_loss(const Tensor& given) {
  check_activation("l2_loss", "x", given, -1);
  const Tensor x = cast(given, DType::kFloat32);
  const Tensor loss = Tensor::empty({}, DType::kFloat32, x.device());
  kernels_of(x).l2_loss(x.data<float>(), x.count(), loss.data<float>(), stream_of(x));
  record<L2LossNode>(loss, {x}, std::vector{x});
  return loss;
}

}  // namespace lockstep
