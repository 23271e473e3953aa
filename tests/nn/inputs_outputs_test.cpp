// Modules with several inputs and outputs, and the errors for wrong numbers of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/nn/layers.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns a + b and 3 a.
struct Mixed : nn::Module {
  Tensors forward_all(const Tensors& inputs) override {
    check_inputs(inputs, 2);
    return {inputs[0] + inputs[1], 3 * inputs[0]};
  }
  std::string kind() const override { return "Mixed"; }
};

struct Sum : nn::Module {
  Tensors forward_all(const Tensors& inputs) override {
    Tensor sum = inputs.at(0);
    for (std::size_t i = 1; i < inputs.size(); ++i) sum = sum + inputs[i];
    return {sum};
  }
  std::string kind() const override { return "Sum"; }
};

struct Nothing : nn::Module {
  std::string kind() const override { return "Nothing"; }
};

Tensor of(float value) { return Tensor::full({2}, value); }
float first(const Tensor& tensor) { return tensor.span<float>()[0]; }

TEST(InputsAndOutputs, AnyNumberTravels) {
  Mixed mixed;
  const Tensors both = mixed(Tensors{of(1), of(10)});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(first(both[0]), 11);
  EXPECT_EQ(first(both[1]), 3);
  Sum sum;
  EXPECT_EQ(first(sum(of(1), of(2))), 3);
  EXPECT_EQ(first(sum(of(1), of(2), of(3))), 6);
  EXPECT_EQ(first(sum(of(5))), 5) << "forward(x) through forward_all";
}

TEST(InputsAndOutputs, AModuleOfOneIsCalledWithAListOfOne) {
  nn::ReLU relu;
  const Tensors outputs = relu(Tensors{of(-1)});
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(first(outputs[0]), 0);
}

TEST(InputsAndOutputs, SequentialPassesAllOn) {
  nn::Sequential net;
  net.append<Mixed>();
  net.append<Mixed>();
  const Tensors outputs = net(Tensors{of(1), of(10)});  // 11 and 3; 14 and 33
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(first(outputs[0]), 14);
  EXPECT_EQ(first(outputs[1]), 33);
  net.append<Sum>();
  EXPECT_EQ(first(net(of(1), of(10))), 47);
  EXPECT_EQ(first(nn::Sequential()(of(4))), 4);
}

TEST(InputsAndOutputs, GradientsFlowThroughAll) {
  Mixed mixed;
  const Tensor a = of(1), b = of(1);
  require_grad(a);
  require_grad(b);
  const Tensors both = mixed(Tensors{a, b});
  (l2_loss(both[0]) + l2_loss(both[1])).backward();
  EXPECT_EQ(first(grad(a)), 2 + 3 * 3);
  EXPECT_EQ(first(grad(b)), 2);
}

TEST(InputsAndOutputs, WrongNumbersNameTheModuleAndBothNumbers) {
  nn::ReLU relu;
  EXPECT_THAT(message_of([&] { relu(of(1), of(2)); }),
              AllOf(HasSubstr("ReLU"), HasSubstr("2 inputs, expected 1"), HasSubstr("forward_all")));
  EXPECT_THAT(message_of([&] { relu(Tensors{}); }), AllOf(HasSubstr("ReLU"), HasSubstr("0 inputs, expected 1")));
  Mixed mixed;
  EXPECT_THAT(message_of([&] { mixed(of(1), of(2), of(3)); }),
              AllOf(HasSubstr("Mixed"), HasSubstr("3 inputs, expected 2")));
  EXPECT_THAT(message_of([&] { mixed(of(1), of(2)); }),
              AllOf(HasSubstr("Mixed"), HasSubstr("2 outputs, expected 1"), HasSubstr("Tensors")));
  EXPECT_THAT(message_of([&] { mixed(of(1)); }), AllOf(HasSubstr("Mixed"), HasSubstr("1 inputs, expected 2")));
}

TEST(InputsAndOutputs, AModuleWithoutAForwardSaysSo) {
  Nothing nothing;
  const auto is_refusal = AllOf(HasSubstr("Nothing"), HasSubstr("neither forward(x) nor forward_all(inputs)"));
  EXPECT_THAT(message_of([&] { nothing(of(1)); }), is_refusal);
  EXPECT_THAT(message_of([&] { nothing(Tensors{of(1)}); }), is_refusal);
  EXPECT_THAT(message_of([&] { nothing(of(1)); }), is_refusal) << "again: no state is left over";
}

}  // namespace
}  // namespace lockstep
