// Activations as modules compute the same as the functions.
#include "lockstep/nn/activations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "lockstep/nn/layers.h"
#include "lockstep/tensor/random.h"

namespace lockstep {
namespace {

TEST(Activations, AreTheFunctions) {
  manual_seed(1);
  const Tensor x = Tensor::empty({3, 40});
  fill_uniform(x, -3, 3);
  const auto same = [&](nn::Module&& module, const Tensor& wanted) {
    const Tensor y = module(x);
    return std::equal(wanted.span<float>().begin(), wanted.span<float>().end(), y.span<float>().begin());
  };
  EXPECT_TRUE(same(nn::GELU(), gelu(x)));
  EXPECT_TRUE(same(nn::GELU(GeluApproximation::kTanh), gelu(x, GeluApproximation::kTanh)));
  EXPECT_TRUE(same(nn::SiLU(), silu(x)));
  EXPECT_TRUE(same(nn::Tanh(), tanh(x)));
  EXPECT_TRUE(same(nn::Sigmoid(), sigmoid(x)));
  EXPECT_TRUE(same(nn::LeakyReLU(), leaky_relu(x)));
  EXPECT_TRUE(same(nn::LeakyReLU(0.3f), leaky_relu(x, 0.3f)));
  EXPECT_FALSE(same(nn::LeakyReLU(0.3f), leaky_relu(x)));
  EXPECT_TRUE(same(nn::ELU(), elu(x)));
  EXPECT_TRUE(same(nn::ELU(0.3f), elu(x, 0.3f)));
  EXPECT_TRUE(same(nn::Softplus(), softplus(x)));
  EXPECT_TRUE(same(nn::Softplus(2, 3), softplus(x, 2, 3)));
  EXPECT_TRUE(same(nn::Hardswish(), hardswish(x)));
  EXPECT_TRUE(same(nn::ReLU6(), relu6(x)));
  EXPECT_TRUE(same(nn::Mish(), mish(x)));
  EXPECT_TRUE(same(nn::GLU(), glu(x)));
  EXPECT_TRUE(same(nn::Identity(), x));
  EXPECT_TRUE(same(nn::Softmax(0), softmax(x, 0)));
  EXPECT_FALSE(same(nn::Softmax(0), softmax(x)));
  EXPECT_TRUE(same(nn::LogSoftmax(0), log_softmax(x, 0)));
  EXPECT_TRUE(same(nn::PReLU(), leaky_relu(x, 0.25f)));
}

TEST(Activations, PReLULearnsAWeightPerChannel) {
  nn::PReLU layer(40, 0.5f);
  EXPECT_EQ(layer.named_parameters().size(), 1U);
  EXPECT_EQ(layer.named_parameters()[0].name, "weight");
  const Tensor x = Tensor::full({3, 40}, -2);
  const Tensor y = layer(x);
  EXPECT_EQ(y.span<float>()[7], -1);
  sum(y).backward();
  EXPECT_EQ(grad(layer.weight).shape(), (Shape{40}));
  EXPECT_EQ(grad(layer.weight).span<float>()[39], -6);
}

TEST(Activations, PrintTheirOptions) {
  nn::Sequential net;
  net.append<nn::GELU>();
  net.append<nn::GELU>(GeluApproximation::kTanh);
  net.append<nn::LeakyReLU>(0.2f);
  net.append<nn::Softmax>(1);
  net.append<nn::Softplus>(2.0f);
  net.append<nn::PReLU>(3);
  net.append<nn::ELU>();
  std::ostringstream text;
  text << net;
  EXPECT_EQ(text.str(),
            "Sequential(\n  (0): GELU()\n  (1): GELU(approximation=tanh)\n  (2): LeakyReLU(negative_slope=0.2)\n"
            "  (3): Softmax(dim=1)\n  (4): Softplus(beta=2, threshold=20)\n  (5): PReLU(3)\n  (6): ELU()\n)");
}

}  // namespace
}  // namespace lockstep
