#include "lockstep/autograd/transfer.h"
#include "lockstep/autograd/extend.h"

namespace lockstep {

namespace {

class TransferNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "to_device"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    targets[0].give(result_grad.to(input(0).device()));
  }
};

}  // namespace

Tensor to_device(const Tensor& x, Device& device) {
  check_place("to_device", "x", x);
  if (&x.device() == &device) return x;
  const Tensor y = x.to(device);
  record<TransferNode>(y, {x});
  return y;
}

}  // namespace lockstep
