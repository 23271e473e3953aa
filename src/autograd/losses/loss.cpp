#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

// A loss that is a sum over elements: its name and its entries in a kernel table.
struct ElementwiseLoss {
  const char* name;
  decltype(KernelTable::mse_loss) KernelTable::*forward;
  decltype(KernelTable::mse_loss_backward) KernelTable::*backward;
  Tensor (*each)(const Tensor& x, const Tensor& target);
};
// Saved: x, target.
class ElementwiseLossNode : public Node {
 public:
  ElementwiseLossNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const ElementwiseLoss& loss, bool mean)
      : Node(std::move(inputs), std::move(saved)), loss_(loss), mean_(mean) {}
  const char* name() const override { return loss_.name; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    (kernels_of(result_grad).*loss_.backward)(saved(0), saved(1), result_grad, mean_, targets[0], targets[1],
                                              stream_of(result_grad));
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

// The losses of the elements, for Reduction::kNone. x and target are float32.
Tensor squared_errors(const Tensor& x, const Tensor& target) {
  const Tensor difference = sub(x, target);
  return mul(difference, difference);
}
Tensor absolute_errors(const Tensor& x, const Tensor& target) { return abs(sub(x, target)); }
// The cross entropy of two classes with the logits x and 0.
Tensor binary_cross_entropies(const Tensor& x, const Tensor& target) {
  const Shape flat{x.count()};
  const Tensor logits = stack({reshape(x, flat), broadcast_to(constant_like(x, 0), flat)}, 1);
  const Tensor wanted = reshape(target, flat);
  return reshape(softmax_cross_entropy(logits, stack({wanted, 1 - wanted}, 1), {.reduction = Reduction::kNone}),
                 x.shape());
}

constexpr ElementwiseLoss kMseLoss{"mse_loss", &KernelTable::mse_loss, &KernelTable::mse_loss_backward, squared_errors};
constexpr ElementwiseLoss kL1Loss{"l1_loss", &KernelTable::l1_loss, &KernelTable::l1_loss_backward, absolute_errors};
constexpr ElementwiseLoss kBinaryCrossEntropy{
    "binary_cross_entropy_with_logits", &KernelTable::binary_cross_entropy_with_logits,
    &KernelTable::binary_cross_entropy_with_logits_backward, binary_cross_entropies};

Tensor elementwise_loss(const ElementwiseLoss& loss, const Tensor& given, const Tensor& wanted, Reduction reduction) {
  check_activation(loss.name, "x", given);
  check_activation(loss.name, "target", wanted, kAnyDims, &given.device());
  if (wanted.shape() != given.shape())
    throw InvalidArgument("{}: target {} must have the shape of x, {}", loss.name, wanted.shape().text(),
                          given.shape().text());
  const bool mean = reduction == Reduction::kMean;
  if (mean && given.count() == 0)
    throw InvalidArgument("{}: x {} is empty, so its mean loss is undefined", loss.name, given.shape().text());
  const Tensor x = cast(given, DType::kFloat32), target = cast(wanted, DType::kFloat32);
  if (reduction == Reduction::kNone) return loss.each(x, target);
  const Tensor result = empty_like(x, {});
  (kernels_of(x).*loss.forward)(x, target, mean, result, stream_of(x));
  record<ElementwiseLossNode>(result, {x, target}, std::vector{x, target}, loss, mean);
  return result;
}

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return elementwise_loss(kMseLoss, x, target, reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return elementwise_loss(kL1Loss, x, target, reduction);
}

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
