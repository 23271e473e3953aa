// Tensors without elements: every operator accepts them, forward and backward. A result that depends on nothing has
// zero gradients, whatever the memory held.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/autograd/attention.h"
#include "lockstep/autograd/conv_transpose.h"
#include "lockstep/autograd/dropout.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/embedding.h"
#include "lockstep/autograd/image_padding.h"
#include "lockstep/autograd/losses.h"
#include "lockstep/autograd/matmul.h"
#include "lockstep/autograd/normalization.h"
#include "lockstep/autograd/recurrent.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/autograd/shapes.h"
#include "lockstep/autograd/softmax.h"
#include "lockstep/autograd/upsample.h"
#include "tests/autograd/gradient_check.h"

namespace lockstep {
namespace {

struct Empty {
  std::string name;
  std::vector<Shape> shapes;  // of the leaves
  std::function<Tensor(const Tensors&)> function;
  Shape result;
};

Tensor integers(const Shape& shape) { return Tensor::zeros(shape, DType::kInt64); }

std::vector<Empty> layers() {
  return {
      {"linear", {{0, 3}, {4, 3}, {4}}, [](const Tensors& x) { return linear(x[0], x[1], x[2]); }, {0, 4}},
      {"linear with ReLU",
       {{0, 3}, {4, 3}, {4}},
       [](const Tensors& x) { return linear(x[0], x[1], x[2], Activation::kReLU); },
       {0, 4}},
      {"conv2d",
       {{0, 5, 5, 3}, {4, 3, 3, 3}, {4}},
       [](const Tensors& x) { return conv2d(x[0], x[1], x[2]); },
       {0, 3, 3, 4}},
      {"depthwise conv2d",
       {{0, 5, 5, 4}, {4, 3, 3, 1}, {4}},
       [](const Tensors& x) { return conv2d(x[0], x[1], x[2], {.groups = 4}); },
       {0, 3, 3, 4}},
      {"grouped conv2d",
       {{0, 5, 5, 4}, {6, 3, 3, 2}, {6}},
       [](const Tensors& x) { return conv2d(x[0], x[1], x[2], {.groups = 2}); },
       {0, 3, 3, 6}},
      {"conv1d", {{0, 5, 3}, {4, 3, 3}, {4}}, [](const Tensors& x) { return conv1d(x[0], x[1], x[2]); }, {0, 3, 4}},
      {"max_pool2d",
       {{0, 4, 4, 3}},
       [](const Tensors& x) {
         return max_pool2d(x[0], {2, 2});
       },
       {0, 2, 2, 3}},
      {"avg_pool2d",
       {{0, 4, 4, 3}},
       [](const Tensors& x) {
         return avg_pool2d(x[0], {2, 2});
       },
       {0, 2, 2, 3}},
      {"max_pool2d without channels",
       {{2, 4, 4, 0}},
       [](const Tensors& x) {
         return max_pool2d(x[0], {2, 2});
       },
       {2, 2, 2, 0}},
      {"avg_pool2d without channels",
       {{2, 4, 4, 0}},
       [](const Tensors& x) {
         return avg_pool2d(x[0], {2, 2});
       },
       {2, 2, 2, 0}},
      {"global_avg_pool2d", {{0, 4, 4, 3}}, [](const Tensors& x) { return global_avg_pool2d(x[0]); }, {0, 3}},
      {"layer_norm", {{0, 4}, {4}, {4}}, [](const Tensors& x) { return layer_norm(x[0], {4}, x[1], x[2]); }, {0, 4}},
      {"layer_norm of no elements",
       {{3, 0}, {0}},
       [](const Tensors& x) { return layer_norm(x[0], {0}, x[1], {}); },
       {3, 0}},
      {"rms_norm", {{0, 4}, {4}}, [](const Tensors& x) { return rms_norm(x[0], {4}, x[1]); }, {0, 4}},
      {"group_norm",
       {{0, 5, 4}, {4}, {4}},
       [](const Tensors& x) { return group_norm(x[0], 2, x[1], x[2]); },
       {0, 5, 4}},
      {"group_norm of no channels",
       {{2, 5, 0}, {0}, {0}},
       [](const Tensors& x) { return group_norm(x[0], 1, x[1], x[2]); },
       {2, 5, 0}},
      {"group_norm of no pixels",
       {{2, 0, 4}, {4}, {4}},
       [](const Tensors& x) { return group_norm(x[0], 2, x[1], x[2]); },
       {2, 0, 4}},
      {"batch_norm",
       {{0, 3}, {3}, {3}},
       [](const Tensors& x) {
         return batch_norm(x[0], x[1], x[2], Tensor::zeros({3}), Tensor::full({3}, 1), {.training = false});
       },
       {0, 3}},
      {"local_response_norm",
       {{0, 2, 2, 3}},
       [](const Tensors& x) { return local_response_norm(x[0], {}); },
       {0, 2, 2, 3}},
      {"lstm_layer of no samples",
       {{4, 0, 3}, {8, 3}, {8, 2}},
       [](const Tensors& x) {
         return lstm_layer(x[0], {x[1], x[2], {}, {}}).output;
       },
       {4, 0, 2}},
      {"gru_layer of no samples",
       {{4, 0, 3}, {6, 3}, {6, 2}},
       [](const Tensors& x) {
         return gru_layer(x[0], {x[1], x[2], {}, {}}).output;
       },
       {4, 0, 2}},
      {"conv_transpose2d",
       {{0, 4, 4, 3}, {3, 2, 2, 5}, {5}},
       [](const Tensors& x) { return conv_transpose2d(x[0], x[1], x[2], {.stride = 2}); },
       {0, 8, 8, 5}},
      {"upsample", {{0, 4, 4, 3}}, [](const Tensors& x) { return upsample(x[0], {.scale = 2}); }, {0, 8, 8, 3}},
      {"adaptive_avg_pool2d",
       {{0, 4, 4, 3}},
       [](const Tensors& x) { return adaptive_avg_pool2d(x[0], 3); },
       {0, 3, 3, 3}},
      {"adaptive_max_pool2d",
       {{0, 4, 4, 3}},
       [](const Tensors& x) { return adaptive_max_pool2d(x[0], 3); },
       {0, 3, 3, 3}},
      {"pad2d", {{0, 4, 4, 3}}, [](const Tensors& x) { return pad2d(x[0], 1, PaddingMode::kReflect); }, {0, 6, 6, 3}},
      {"dropout_channels", {{0, 4, 3}}, [](const Tensors& x) { return dropout_channels(x[0], 0.5F); }, {0, 4, 3}},
      {"softmax", {{0, 3}}, [](const Tensors& x) { return softmax(x[0]); }, {0, 3}},
      {"softmax of no columns", {{3, 0}}, [](const Tensors& x) { return softmax(x[0]); }, {3, 0}},
      {"log_softmax of no columns", {{3, 0}}, [](const Tensors& x) { return log_softmax(x[0]); }, {3, 0}},
      {"dropout", {{0, 3}}, [](const Tensors& x) { return dropout(x[0], 0.5F, true); }, {0, 3}},
      {"attention of no samples",
       {{0, 4, 2, 8}, {0, 4, 2, 8}, {0, 4, 2, 8}},
       [](const Tensors& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true}); },
       {0, 4, 2, 8}},
      {"attention of no queries",
       {{2, 0, 2, 8}, {2, 3, 2, 8}, {2, 3, 2, 8}},
       [](const Tensors& x) { return scaled_dot_product_attention(x[0], x[1], x[2]); },
       {2, 0, 2, 8}},
      {"attention of no width",
       {{2, 4, 2, 0}, {2, 3, 2, 0}, {2, 3, 2, 0}},
       [](const Tensors& x) { return scaled_dot_product_attention(x[0], x[1], x[2]); },
       {2, 4, 2, 0}},
      {"attention, packed",
       {{2, 0, 3, 2, 8}},
       [](const Tensors& x) { return scaled_dot_product_attention(x[0]); },
       {2, 0, 2, 8}},
      {"embedding", {{5, 3}}, [](const Tensors& x) { return embedding(x[0], integers({0})); }, {0, 3}},
      {"embedding of no width", {{5, 0}}, [](const Tensors& x) { return embedding(x[0], integers({2})); }, {2, 0}},
  };
}

std::vector<Empty> others() {
  return {
      {"matmul", {{0, 3}, {3, 2}}, [](const Tensors& x) { return matmul(x[0], x[1]); }, {0, 2}},
      {"matmul of no columns", {{2, 3}, {3, 0}}, [](const Tensors& x) { return matmul(x[0], x[1]); }, {2, 0}},
      {"matmul of no batches", {{0, 2, 3}, {0, 3, 4}}, [](const Tensors& x) { return matmul(x[0], x[1]); }, {0, 2, 4}},
      {"matmul, one b",
       {{0, 2, 3}, {4, 3}},
       [](const Tensors& x) { return matmul(x[0], x[1], {.transpose_b = true}); },
       {0, 2, 4}},
      {"gather of rows",
       {{3, 4}},
       [](const Tensors& x) {
         return gather(x[0], 0, integers({0, 4}));
       },
       {0, 4}},
      {"gather of columns",
       {{3, 4}},
       [](const Tensors& x) {
         return gather(x[0], -1, integers({3, 0}));
       },
       {3, 0}},
      {"gather of nothing",
       {{0, 4}},
       [](const Tensors& x) {
         return gather(x[0], 1, integers({0, 9}));
       },
       {0, 9}},
      {"sum to nothing", {{0, 3}}, [](const Tensors& x) { return sum(x[0], -1, true); }, {0, 1}},
      {"mean to nothing",
       {{0, 3, 2}},
       [](const Tensors& x) {
         return mean(x[0], {1, -1});
       },
       {0}},
      {"max", {{0, 3}}, [](const Tensors& x) { return max(x[0], 1).values; }, {0}},
      {"amax", {{2, 0, 3}}, [](const Tensors& x) { return amax(x[0], {-1}, true); }, {2, 0, 1}},
      {"add, repeated rows", {{0, 3}, {1, 3}}, [](const Tensors& x) { return add(x[0], x[1]); }, {0, 3}},
      {"mul, repeated columns", {{2, 0}, {2, 1}}, [](const Tensors& x) { return mul(x[0], x[1]); }, {2, 0}},
      {"sub of a scalar", {{0}, {}}, [](const Tensors& x) { return sub(x[0], x[1]); }, {0}},
      {"div by a row", {{0, 3}, {3}}, [](const Tensors& x) { return div(x[0], x[1]); }, {0, 3}},
      {"pow, repeated rows", {{0, 3}, {1, 3}}, [](const Tensors& x) { return pow(x[0], x[1]); }, {0, 3}},
      {"where",
       {{0, 3}, {3}},
       [](const Tensors& x) {
         return where(Tensor::zeros({1, 3}, DType::kUInt8), x[0], x[1]);
       },
       {0, 3}},
      {"broadcast_to",
       {{1, 3}},
       [](const Tensors& x) {
         return broadcast_to(x[0], {0, 3});
       },
       {0, 3}},
      {"concat",
       {{0, 3}, {0, 3}},
       [](const Tensors& x) {
         return concat({x[0], x[1]}, 0);
       },
       {0, 3}},
      {"slice",
       {{4, 3}},
       [](const Tensors& x) {
         return slice(x[0], 0, {4, 9});
       },
       {0, 3}},
      {"permute",
       {{0, 3, 2}},
       [](const Tensors& x) {
         return permute(x[0], {2, 0, -2});
       },
       {2, 0, 3}},
      {"pad",
       {{0, 3}},
       [](const Tensors& x) {
         return pad(x[0], {{0, 0}, {1, 1}}, 9);
       },
       {0, 5}},
      {"split",
       {{0, 4}},
       [](const Tensors& x) {
         return split(x[0], std::vector<std::int64_t>{1, 3}, -1)[1];
       },
       {0, 3}},
      {"gelu", {{0}}, [](const Tensors& x) { return gelu(x[0]); }, {0}},
      {"relu", {{0}}, [](const Tensors& x) { return relu(x[0]); }, {0}},
      {"scale", {{0}}, [](const Tensors& x) { return scale(x[0], 3); }, {0}},
      {"bias_add", {{0, 3}, {3}}, [](const Tensors& x) { return bias_add(x[0], x[1]); }, {0, 3}},
      {"cast", {{0, 3}}, [](const Tensors& x) { return cast(x[0], DType::kBFloat16); }, {0, 3}},
  };
}

void check(const Empty& each) {
  SCOPED_TRACE(each.name);
  Tensors leaves;
  for (const Shape& shape : each.shapes) {
    leaves.push_back(Tensor::full(shape, 0.5F));
    require_grad(leaves.back());
    bind_grad(leaves.back(), Tensor::full(shape, std::nanf("")).buffer());
  }
  const Tensor y = each.function(leaves);
  ASSERT_EQ(y.shape(), each.result);
  y.backward({.gradient = Tensor::zeros(y.shape(), y.dtype())});
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_TRUE(has_grad(leaves[i])) << "leaf " << i;
    const Tensor gradient = grad(leaves[i]);
    for (const float value : gradient.span<float>()) ASSERT_EQ(value, 0) << "leaf " << i;
  }
}

TEST(Empty, LayersTakeIt) {
  for (const Empty& each : layers()) check(each);
}

TEST(Empty, OtherOperatorsTakeIt) {
  for (const Empty& each : others()) check(each);
}

// Sums over nothing are zero; the result has elements.
TEST(Empty, SumsAreZero) {
  const auto expect_zeros = [](const Tensor& y, const Shape& shape) {
    ASSERT_EQ(y.shape(), shape);
    for (const float value : y.span<float>()) EXPECT_EQ(value, 0);
  };
  const auto poisoned = [](const Shape& shape) {
    Tensor::full(shape, 7);
  };  // leaves its memory to the next tensor of that size
  poisoned({2, 4}), expect_zeros(matmul(Tensor::zeros({2, 0}), Tensor::zeros({0, 4})), {2, 4});
  poisoned({2, 4}), expect_zeros(linear(Tensor::zeros({2, 0}), Tensor::zeros({4, 0}), Tensor()), {2, 4});
  poisoned({3}), expect_zeros(sum(Tensor::zeros({0, 3}), 0), {3});
  poisoned({}), expect_zeros(sum(Tensor::zeros({0, 3})), {});
  poisoned({}), expect_zeros(l2_loss(Tensor::zeros({0})), {});
  poisoned({}), expect_zeros(mse_loss(Tensor::zeros({0}), Tensor::zeros({0}), Reduction::kSum), {});
  poisoned({}), expect_zeros(l1_loss(Tensor::zeros({0, 2}), Tensor::zeros({0, 2}), Reduction::kSum), {});
  poisoned({}),
      expect_zeros(binary_cross_entropy_with_logits(Tensor::zeros({0}), Tensor::zeros({0}), Reduction::kSum), {});
  poisoned({}),
      expect_zeros(softmax_cross_entropy(Tensor::zeros({0, 3}), integers({0}), {.reduction = Reduction::kSum}), {});
  poisoned({}), expect_zeros(nll_loss(Tensor::zeros({0, 3}), integers({0}), Reduction::kSum), {});
  EXPECT_TRUE(std::isnan(mean(Tensor::zeros({0})).item()));
}

// Sums over nothing have a gradient although their input has no elements; for an operand with elements it is zero.
TEST(Empty, SumsGoBackward) {
  const auto check_sum = [](const Tensors& leaves, const std::function<Tensor()>& function) {
    for (const Tensor& leaf : leaves) {
      require_grad(leaf);
      bind_grad(leaf, Tensor::full(leaf.shape(), std::nanf("")).buffer());
    }
    const Tensor y = function();
    y.backward({.gradient = Tensor::full(y.shape(), 3)});
    for (const Tensor& leaf : leaves) {
      ASSERT_TRUE(has_grad(leaf));
      EXPECT_EQ(grad(leaf).shape(), leaf.shape());
      for (const float value : grad(leaf).span<float>()) EXPECT_EQ(value, 0);
    }
  };
  const auto leaf = [](const Shape& shape) { return Tensor::full(shape, 0.5F); };
  const Tensor none = leaf({0, 3}), no_labels = integers({0}), a = leaf({2, 0}), b = leaf({0, 4}),
               weight = leaf({4, 0});
  check_sum({a, b}, [&] { return matmul(a, b); });
  check_sum({a, weight}, [&] { return linear(a, weight, Tensor()); });
  check_sum({none}, [&] { return sum(none, 0); });
  check_sum({none}, [&] { return sum(none); });
  check_sum({none}, [&] { return l2_loss(none); });
  for (const auto loss : {mse_loss, l1_loss, binary_cross_entropy_with_logits})
    check_sum({none}, [&] { return loss(none, Tensor::zeros({0, 3}), Reduction::kSum); });
  check_sum({none}, [&] { return softmax_cross_entropy(none, no_labels, {.reduction = Reduction::kSum}); });
  check_sum({none}, [&] { return nll_loss(none, no_labels, Reduction::kSum); });
}

// Steps and stops at the limits of 64 bits.
TEST(Empty, SlicesOfAnyStepAreCounted) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(),
                         kLeast = std::numeric_limits<std::int64_t>::min();
  const Tensor x = Tensor::from<float>(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3});
  EXPECT_EQ(slice(x, 0, {.step = kMost}).shape(), (Shape{1, 3}));
  EXPECT_EQ(slice(x, 1, {.start = 1, .step = kMost}).span<float>()[1], 4);
  EXPECT_EQ(slice(x, 1, {.start = kLeast, .stop = kMost, .step = 2}).shape(), (Shape{2, 2}));
  EXPECT_EQ(slice(x, 1, {.start = 2, .stop = kLeast}).count(), 0);
}

}  // namespace
}  // namespace lockstep
