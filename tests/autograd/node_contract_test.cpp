// The contract of a node, including a user's own: it must write a gradient for each wanted input, of the input's size
// and on its device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/core/error.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using Write = std::function<void(const GradTarget& target)>;

class OwnNode : public Node {
 public:
  OwnNode(const Tensor& x, Write write) : Node({x}), write_(std::move(write)) {}
  const char* name() const override { return "own"; }
  void backward(const Tensor&, std::span<const GradTarget> targets) override { write_(targets[0]); }

 private:
  Write write_;
};

// Returns x; `write` writes its gradient.
Tensor own(const Tensor& x, Write write) {
  const Tensor y = x.clone();
  if (recording(std::array{x})) attach(y, std::make_shared<OwnNode>(x, std::move(write)));
  return y;
}

Tensor leaf(const Shape& shape) {
  Tensor x = Tensor::full(shape, 2);
  require_grad(x);
  return x;
}

TEST(NodeContract, AGradientOfAnotherSizeIsRefusedByName) {
  for (const Shape& shape : {Shape{1}, Shape{7}, Shape{2, 3, 4}}) {
    const Tensor x = leaf({2, 3});
    const Write write = [&](const GradTarget& target) { target.give(Tensor::full(shape, 1)); };
    for (const Tensor& input : {x, x * x}) {  // into a leaf's memory, and into a temporary
      const std::string text = message_of([&] { sum(own(input, write)).backward(); });
      EXPECT_THAT(text, HasSubstr("backward: own returned a tensor of shape " + shape.text() + " on cpu"));
      EXPECT_THAT(text, HasSubstr("as the gradient of an input of shape (2, 3) on cpu"));
    }
    EXPECT_FALSE(has_grad(x));
  }
  const Tensor x = leaf({2});
  EXPECT_THAT(message_of([&] { sum(own(x, [](const GradTarget& target) { target.give(Tensor()); })).backward(); }),
              HasSubstr("backward: own returned an undefined tensor"));
}

TEST(NodeContract, AGradientThatIsNotWrittenIsAnErrorAndNoStaleOneStays) {
  const Tensor x = leaf({2});
  bool writes = true;
  const Write write = [&](const GradTarget& target) {
    if (writes) target.give(Tensor::full({2}, 3));
  };
  sum(own(x, write)).backward();
  EXPECT_EQ(grad(x).span<float>()[0], 3);
  clear_grad(x);
  writes = false;
  EXPECT_THAT(message_of([&] { sum(own(x, write)).backward(); }),
              HasSubstr("backward: own wrote no gradient of its input 0, "));
  EXPECT_FALSE(has_grad(x));
  EXPECT_THAT(message_of([&] { gradients(sum(own(x * x, write)), {x}); }),
              HasSubstr("own wrote no gradient of its input 0"));
}

TEST(NodeContract, HoldsWithinACheckpoint) {
  const Tensor x = leaf({2});
  bool writes = true;
  const Write write = [&](const GradTarget& target) {
    if (writes) target.give(Tensor::full({2}, 3));
  };
  const auto loss = [&] { return sum(checkpoint([&](const Tensor& input) { return own(input, write); }, x * x)); };
  loss().backward();
  EXPECT_EQ(grad(x).span<float>()[0], 3 * 4);
  clear_grad(x);
  writes = false;
  EXPECT_THAT(message_of([&] { loss().backward(); }), HasSubstr("own wrote no gradient of its input 0"));
  EXPECT_FALSE(has_grad(x));
}

}  // namespace
}  // namespace lockstep
