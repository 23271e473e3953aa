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
}

TEST(Activations, PrintTheirOptions) {
  nn::Sequential net;
  net.append<nn::GELU>();
  net.append<nn::GELU>(GeluApproximation::kTanh);
  net.append<nn::LeakyReLU>(0.2f);
  std::ostringstream text;
  text << net;
  EXPECT_EQ(text.str(),
            "Sequential(\n  (0): GELU()\n  (1): GELU(approximation=tanh)\n  (2): LeakyReLU(negative_slope=0.2)\n)");
}

}  // namespace
}  // namespace lockstep
