// One tensor, a leaf or a result, as two or three inputs of one operator: its gradient is the sum over all uses.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/attention.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/matmul.h"
#include "lockstep/autograd/normalization.h"
#include "lockstep/autograd/shapes.h"
#include "tests/autograd/gradient_check.h"

namespace lockstep {
namespace {

struct Repeated {
  std::string name;
  Shape shape;
  std::function<Tensor(const Tensor&)> function;
};

std::vector<Repeated> operators() {
  const Tensor mask = Tensor::zeros({3, 3}, DType::kUInt8);
  mask.span<std::uint8_t>()[4] = 1;
  return {
      {"linear", {3, 3}, [](const Tensor& x) { return linear(x, x, Tensor()); }},
      {"linear and its bias",
       {3, 1},
       [](const Tensor& x) {
         return linear(x, Tensor::full({3, 1}, 0.5F), reshape(x, {3}));
       }},
      {"linear with ReLU", {3, 3}, [](const Tensor& x) { return linear(x, x, Tensor(), Activation::kReLU); }},
      {"conv2d", {2, 3, 3, 2}, [](const Tensor& x) { return conv2d(x, x, Tensor(), {.padding = Padding::all(1)}); }},
      {"bias_add", {4}, [](const Tensor& x) { return bias_add(x, x); }},
      {"layer_norm", {5}, [](const Tensor& x) { return layer_norm(x, {5}, x, x); }},
      {"rms_norm", {5}, [](const Tensor& x) { return rms_norm(x, {5}, x); }},
      {"matmul", {3, 3}, [](const Tensor& x) { return matmul(x, x); }},
      {"matmul, transposed", {2, 3, 3}, [](const Tensor& x) { return matmul(x, x, {.transpose_b = true}); }},
      {"attention",
       {1, 4, 2, 3},
       [](const Tensor& x) { return scaled_dot_product_attention(x, x, x, {.causal = true}); }},
      {"attention of two",
       {1, 4, 2, 3},
       [](const Tensor& x) { return scaled_dot_product_attention(scale(x, 2), x, x); }},
      {"add", {4}, [](const Tensor& x) { return add(x, x); }},
      {"sub, broadcast", {3, 1}, [](const Tensor& x) { return sub(mul(x, x), x); }},
      {"div", {4}, [](const Tensor& x) { return div(x, x) + div(Tensor::full({4}, 2), x); }},
      {"mul", {4}, [](const Tensor& x) { return mul(x, x); }},
      {"where", {3, 3}, [mask](const Tensor& x) { return where(mask, x, x); }},
      {"concat",
       {2, 3},
       [](const Tensor& x) {
         return concat({x, x, x}, -1);
       }},
  };
}

// The gradient equals the sum of those of separate copies.
TEST(RepeatedInputs, OfALeafAddUp) {
  for (const Repeated& each : operators()) {
    SCOPED_TRACE(each.name);
    manual_seed(11);
    const Tensor x = random_leaf(each.shape, 0.5F, 1.5F);
    check_gradients(
        {x}, [&] { return weigh(add(each.function(x), 0)) + l2_loss(each.function(x)); }, 1e-2F, 2e-2);
  }
}

TEST(RepeatedInputs, OfAResultAddUp) {
  for (const Repeated& each : operators()) {
    SCOPED_TRACE(each.name);
    manual_seed(12);
    const Tensor x = random_leaf(each.shape, 0.5F, 1.5F);
    check_gradients(
        {x}, [&] { return l2_loss(each.function(scale(x, 0.75F))); }, 1e-2F, 2e-2);
  }
}

TEST(RepeatedInputs, AddToGradientsOfEarlierPasses) {
  const Tensor w = Tensor::from<float>(std::vector<float>{1, 2, 3, 4}, {2, 2});
  require_grad(w);
  const auto pass = [&] { l2_loss(linear(w, w, Tensor())).backward(); };
  pass();
  const std::vector<float> once(grad(w).span<float>().begin(), grad(w).span<float>().end());
  pass();
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(grad(w).span<float>()[i], 2 * once[i]) << i;
}

TEST(RepeatedInputs, OfALossOfATensorAgainstItselfIsZero) {
  const Tensor x = Tensor::from<float>(std::vector<float>{1, -2, 3}, {3});
  require_grad(x);
  bind_grad(x, Tensor::full({3}, 77).buffer());
  mse_loss(x, x).backward();
  const Tensor gradient = grad(x);
  for (const float value : gradient.span<float>()) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace lockstep
