#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"

namespace lockstep {

namespace {

// Saved: probabilities, labels.
class CrossEntropyNode : public Node {
 public:
  CrossEntropyNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const CrossEntropyParams& params)
      : Node(std::move(inputs), std::move(saved)), params_(params) {}
  const char* name() const override { return "softmax_cross_entropy"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).softmax_cross_entropy_backward(params_, saved(0), saved(1), result_grad, targets[0], stream_of(result_grad));
  }

 private:
  CrossEntropyParams params_;
};

// Saved: labels.
class NllLossNode : public Node {
 public:
  NllLossNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, bool mean) : Node(std::move(inputs), std::move(saved)), mean_(mean) {}
  const char* name() const override { return "nll_loss"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).nll_loss_backward(saved(0), result_grad, mean_, targets[0], stream_of(result_grad));
  }

 private:
  bool mean_;
};

// A loss that is a sum over elements: its name and its entries in a kernel table.
struct ElementwiseLoss {
  const char* name;
  decltype(KernelTable::mse_loss) KernelTable::*forward;
  decltype(KernelTable::mse_loss_backward) KernelTable::*backward;
};
constexpr ElementwiseLoss kMseLoss{"mse_loss", &KernelTable::mse_loss, &KernelTable::mse_loss_backward};
constexpr ElementwiseLoss kL1Loss{"l1_loss", &KernelTable::l1_loss, &KernelTable::l1_loss_backward};
constexpr ElementwiseLoss kBinaryCrossEntropy{"binary_cross_entropy_with_logits", &KernelTable::binary_cross_entropy_with_logits,
                                              &KernelTable::binary_cross_entropy_with_logits_backward};

// Saved: x, target.
class ElementwiseLossNode : public Node {
 public:
  ElementwiseLossNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const ElementwiseLoss& loss, bool mean)
      : Node(std::move(inputs), std::move(saved)), loss_(loss), mean_(mean) {}
  const char* name() const override { return loss_.name; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    (kernels_of(result_grad).*loss_.backward)(saved(0), saved(1), result_grad, mean_, targets[0], targets[1], stream_of(result_grad));
  }

 private:
  const ElementwiseLoss& loss_;
  bool mean_;
};

// Saved: x.
class L2LossNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "l2_loss"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).scale_by(saved(0), result_grad, targets[0], stream_of(result_grad));
  }
};

// On the CPU the labels are at hand. On a GPU the host would have to wait for them: one outside makes the loss NaN there.
void check_label_values(const char* operation, const Tensor& labels, std::int64_t classes) {
  if (labels.device().kind() != DeviceKind::kCpu) return;
  const auto values = labels.span<std::int64_t>();
  for (std::size_t row = 0; row < values.size(); ++row)
    if (values[row] < 0 || values[row] >= classes)
      throw InvalidArgument("{}: label {} in row {} is outside 0..{}", operation, values[row], row, classes - 1);
}

// Of scores (N, K), called `what`.
void check_labels(const char* operation, const char* what, const Tensor& labels, const Tensor& scores, Reduction reduction) {
  const std::int64_t batch = scores.shape()[0], classes = scores.shape()[1];
  if (!labels.defined() || labels.dtype() != DType::kInt64 || labels.shape() != Shape{batch})
    throw InvalidArgument("{}: labels must be int64 ({}), got {}", operation, batch,
                          labels.defined() ? fmt::format("{} {}", name_of(labels.dtype()), labels.shape().text()) : "an undefined tensor");
  if (&labels.device() != &scores.device())
    throw InvalidArgument(
        "{}: labels are on {}, {} on {}: move a module or a tensor with .to(device), batches with DataLoaderOptions::device", operation,
        labels.device().name(), what, scores.device().name());
  if (classes == 0 || (batch == 0 && reduction == Reduction::kMean))
    throw InvalidArgument("{}: {} {} are empty: their mean loss is undefined", operation, what, scores.shape().text());
  check_label_values(operation, labels, classes);
}

Tensor elementwise_loss(const ElementwiseLoss& loss, const Tensor& given, const Tensor& wanted, Reduction reduction) {
  check_activation(loss.name, "x", given);
  check_activation(loss.name, "target", wanted, kAnyDims, &given.device());
  if (wanted.shape() != given.shape())
    throw InvalidArgument("{}: target {} must have the shape of x, {}", loss.name, wanted.shape().text(), given.shape().text());
  const bool mean = reduction == Reduction::kMean;
  if (mean && given.count() == 0) throw InvalidArgument("{}: x {} is empty: its mean loss is undefined", loss.name, given.shape().text());
  const Tensor x = cast(given, DType::kFloat32), target = cast(wanted, DType::kFloat32);
  const Tensor result = empty_like(x, {});
  (kernels_of(x).*loss.forward)(x, target, mean, result, stream_of(x));
  record<ElementwiseLossNode>(result, {x, target}, std::vector{x, target}, loss, mean);
  return result;
}

}  // namespace

Tensor softmax_cross_entropy(const Tensor& scores, const Tensor& labels, const CrossEntropyOptions& options) {
  check_activation("softmax_cross_entropy", "logits (N, K)", scores, 2);
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    throw InvalidArgument("softmax_cross_entropy: label_smoothing {} is outside 0..1", options.label_smoothing);
  const Tensor logits = cast(scores, DType::kFloat32);
  check_labels("softmax_cross_entropy", "logits", labels, logits, options.reduction);
  const CrossEntropyParams params{options.label_smoothing, options.reduction == Reduction::kMean};
  const Tensor loss = empty_like(logits, {}), probabilities = empty_like(logits);
  kernels_of(logits).softmax_cross_entropy(params, logits, labels, loss, probabilities, stream_of(logits));
  record<CrossEntropyNode>(loss, {logits}, std::vector{probabilities, labels}, params);
  return loss;
}

Tensor nll_loss(const Tensor& given, const Tensor& labels, Reduction reduction) {
  check_activation("nll_loss", "log_probabilities (N, K)", given, 2);
  const Tensor log_probabilities = cast(given, DType::kFloat32);
  check_labels("nll_loss", "log_probabilities", labels, log_probabilities, reduction);
  const bool mean = reduction == Reduction::kMean;
  const Tensor loss = empty_like(log_probabilities, {});
  kernels_of(loss).nll_loss(log_probabilities, labels, mean, loss, stream_of(loss));
  record<NllLossNode>(loss, {log_probabilities}, std::vector{labels}, mean);
  return loss;
}

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) { return elementwise_loss(kMseLoss, x, target, reduction); }

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) { return elementwise_loss(kL1Loss, x, target, reduction); }

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction) {
  return elementwise_loss(kBinaryCrossEntropy, logits, target, reduction);
}

Tensor l2_loss(const Tensor& given) {
  check_activation("l2_loss", "x", given);
  const Tensor x = cast(given, DType::kFloat32);
  const Tensor loss = empty_like(x, {});
  kernels_of(x).l2_loss(x, loss, stream_of(x));
  record<L2LossNode>(loss, {x}, std::vector{x});
  return loss;
}

}  // namespace lockstep
