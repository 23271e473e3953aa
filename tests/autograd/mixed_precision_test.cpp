// Mixed precision: what AutoCast changes and what stays float32. Gradients are compared with those of float32: bit for
// bit if every value fits into 16 bits, else within bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/embedding.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/nn/loss.h"
#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

// -1, 0 or 1: sums of up to 256 products of them are exact, also in bfloat16.
Tensor small_numbers(const Shape& shape, std::uint64_t seed) {
  const Tensor tensor = Tensor::empty(shape);
  Philox random(seed, 0);
  for (float& value : tensor.span<float>()) value = static_cast<float>(random.below(3)) - 1;
  return tensor;
}

Tensor leaf(const Tensor& tensor) {
  require_grad(tensor);
  return tensor;
}

std::vector<float> values_of(const Tensor& tensor) {
  const Tensor floats = cast(tensor, DType::kFloat32);
  const auto span = floats.span<float>();
  return {span.begin(), span.end()};
}

class MixedPrecision : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, MixedPrecision, ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Every operator except norms; the input requires a gradient as well, and one activation is used twice.
std::vector<std::vector<float>> exact_gradients(DType type) {
  const AutoCast autocast(type);
  const Tensor x = leaf(small_numbers({2, 4, 5, 2}, 1)), weight = leaf(small_numbers({3, 2, 2, 2}, 2)),
               bias = leaf(small_numbers({3}, 3));
  const Tensor shift = leaf(small_numbers({3}, 4)), head = leaf(small_numbers({2, 12}, 5)),
               last = small_numbers({1, 4}, 6);
  const Tensor y = conv2d(x, weight, bias, {.activation = Activation::kReLU});
  EXPECT_EQ(y.dtype(), type);
  const Tensor pooled = max_pool2d(y, {2, 2}, {.stride = {1, 2}});
  const Tensor twice = add(relu(bias_add(pooled, shift)), scale(pooled, -1));
  EXPECT_EQ(twice.dtype(), type);
  const Tensor scores = linear(flatten(twice), head, Tensor());
  const Tensor loss = cast(reshape(linear(reshape(scores, {1, 4}), last, Tensor()), {}), DType::kFloat32);
  loss.backward();
  std::vector<std::vector<float>> all = {values_of(y), values_of(scores), values_of(loss)};
  for (const Tensor& each : {x, weight, bias, shift, head}) {
    EXPECT_EQ(each.dtype(), DType::kFloat32);
    EXPECT_EQ(grad(each).dtype(), DType::kFloat32);
    all.push_back(values_of(grad(each)));
  }
  return all;
}

TEST_P(MixedPrecision, GivesFloatsBitsWhereEveryValueFits) {
  const auto expected = exact_gradients(DType::kFloat32), actual = exact_gradients(GetParam());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i], expected[i]) << "result " << i;
    EXPECT_TRUE(std::any_of(expected[i].begin(), expected[i].end(), [](float value) { return value != 0; }))
        << "result " << i << " tests nothing";
  }
}

// Random weights, all kinds of layers: each gradient is within a few roundings of float32's, as vectors.
TEST_P(MixedPrecision, GradientsAreFloatsUpToRounding) {
  const auto gradients = [](DType type) {
    const AutoCast autocast(type);
    manual_seed(4);
    std::vector<Tensor> leaves;
    for (const Shape& shape : {Shape{8, 3, 3, 3}, Shape{8}, Shape{5, 128}, Shape{5}}) {
      leaves.push_back(Tensor::empty(shape));
      fill_uniform(leaves.back(), -0.3F, 0.3F);
      require_grad(leaves.back());
    }
    const Tensor x = Tensor::empty({6, 8, 8, 3});
    fill_normal(x, 0, 1);
    const Tensor labels = Tensor::from<std::int64_t>(std::vector<std::int64_t>{0, 1, 2, 3, 4, 0}, {6});
    const Tensor features = local_response_norm(
        max_pool2d(conv2d(x, leaves[0], leaves[1], {.padding = Same{}, .activation = Activation::kReLU}), {2, 2}),
        {.radius = 2});
    const Tensor loss = softmax_cross_entropy(linear(flatten(features), leaves[2], leaves[3]), labels);
    EXPECT_EQ(loss.dtype(), DType::kFloat32);
    loss.backward();
    std::vector<std::vector<float>> all = {values_of(loss)};
    for (const Tensor& each : leaves) all.push_back(values_of(grad(each)));
    return all;
  };
  const double bound = GetParam() == DType::kBFloat16 ? 0.02 : 0.003;
  const auto expected = gradients(DType::kFloat32), actual = gradients(GetParam());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double difference = 0, size = 0;
    for (std::size_t j = 0; j < expected[i].size(); ++j) {
      difference += std::pow(double{actual[i][j]} - expected[i][j], 2);
      size += std::pow(double{expected[i][j]}, 2);
    }
    EXPECT_GT(size, 0);
    EXPECT_LE(std::sqrt(difference), bound * std::sqrt(size)) << "gradient " << i;
    if (i > 0) {  // the loss is a single number, which may round alike
      EXPECT_NE(actual[i], expected[i]) << "gradient " << i << " was not computed in 16 bits";
    }
  }
}

TEST_P(MixedPrecision, ACastsGradientWidensStraightIntoTheSlot) {
  const Tensor x = leaf(small_numbers({3, 4}, 1)), weight = small_numbers({1, 4}, 2);
  const Buffer slot = cpu_device().allocate(x.bytes());
  bind_grad(x, slot);
  const auto run = [&] {
    const Tensor half = cast(x, GetParam());
    EXPECT_EQ(half.dtype(), GetParam());
    EXPECT_EQ(values_of(half), values_of(x));
    const Tensor y = linear(half, weight, Tensor());  // computes in its input's type, with or without AutoCast
    EXPECT_EQ(y.dtype(), GetParam());
    l2_loss(y).backward();
  };
  run();
  const std::vector<float> once = values_of(grad(x));
  EXPECT_EQ(static_cast<const void*>(grad(x).data<float>()), static_cast<const void*>(slot.data()));
  run();  // adds
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(grad(x).span<float>()[i], 2 * once[i]);
}

// The result of a linear layer on the rows is added to them, so both have one type. Gradients of whole numbers are
// those of float32, bit for bit.
TEST_P(MixedPrecision, EmbeddingsGiveRowsOfItsType) {
  const std::vector<std::int64_t> words = {3, 1, 1, 0};
  const Tensor table = leaf(small_numbers({4, 3}, 8)), weight = leaf(small_numbers({3, 3}, 9));
  const auto gradients = [&](DType type) {
    const AutoCast autocast(type);
    const Tensor rows = embedding(table, Tensor::from<std::int64_t>(words, {2, 2}));
    EXPECT_EQ(rows.dtype(), type);
    const Tensor y = rows + linear(rows, weight, Tensor());
    EXPECT_EQ(y.dtype(), type);
    clear_grad(table);
    clear_grad(weight);
    sum(cast(y, DType::kFloat32)).backward();
    EXPECT_EQ(grad(table).dtype(), DType::kFloat32);
    return std::vector{values_of(rows), values_of(grad(table)), values_of(grad(weight))};
  };
  EXPECT_EQ(gradients(GetParam()), gradients(DType::kFloat32));
  EXPECT_EQ(embedding(table, Tensor::from<std::int64_t>(words, {4})).dtype(), DType::kFloat32);
}

TEST(AutoCast, IsOfTheThreadAndTheInnermostCounts) {
  EXPECT_EQ(AutoCast::active(), DType::kFloat32);
  const Tensor x = small_numbers({2, 3}, 1), weight = small_numbers({4, 3}, 2);
  {
    const AutoCast outer(DType::kBFloat16);
    EXPECT_EQ(linear(x, weight, Tensor()).dtype(), DType::kBFloat16);
    {
      const AutoCast off(DType::kFloat32);
      EXPECT_EQ(linear(x, weight, Tensor()).dtype(), DType::kFloat32);
    }
    EXPECT_EQ(AutoCast::active(), DType::kBFloat16);
  }
  EXPECT_EQ(linear(x, weight, Tensor()).dtype(), DType::kFloat32);
  EXPECT_THROW(AutoCast{DType::kInt32}, InvalidArgument);
  EXPECT_EQ(AutoCast::active(), DType::kFloat32);
}

TEST(MixedPrecisionErrors, SayWhatWasExpected) {
  const Tensor x = small_numbers({2, 3}, 1), half = cast(x, DType::kFloat16);
  EXPECT_NE(message_of([&] { linear(x, half, Tensor()); }).find("weight (O, I) must be float32, got float16"),
            std::string::npos);
  EXPECT_NE(message_of([&] { add(x, half); }).find("add: float32 and float16 differ"), std::string::npos);
  EXPECT_NE(message_of([&] { cast(Tensor::zeros({2}, DType::kInt64), DType::kFloat16); }).find("int64"),
            std::string::npos);
  EXPECT_NE(message_of([&] { cast(x, DType::kInt8); }).find("got int8"), std::string::npos);
  EXPECT_TRUE(cast(x, DType::kFloat32).is_same(x));
}

TEST(MixedPrecisionLoss, CountsCorrectOnesOfHalfScores) {
  const Tensor logits = Tensor::from<float>(std::vector<float>{1, 2, 0, 5, 4, 3}, {2, 3});
  const Tensor labels = Tensor::from<std::int64_t>(std::vector<std::int64_t>{1, 2}, {2});
  EXPECT_EQ(nn::count_correct(cast(logits, DType::kBFloat16), labels), 1);
}

}  // namespace
}  // namespace lockstep
