// Compares attention with masks, key lengths, grouped heads, shifted causal masks and dropout with its formula in
// double and with finite differences.
#include <gmock/gmock.h>

#include <limits>
#include <tuple>

#include "lockstep/autograd/attention.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

struct MaskCase {
  const char* name;
  std::int64_t batch, queries, keys, heads, key_heads, width;
  AttentionOptions options = {};
  Shape mask = Shape{0};  // of options.mask; Shape{0}: without
  bool is_additive = false;
};

constexpr auto kLowerRight = CausalAlignment::kLowerRight, kUpperLeft = CausalAlignment::kUpperLeft;

// `last` queries of a sample, or samples, that see nothing are part of some cases.
std::vector<MaskCase> mask_cases() {
  return {{"grouped", 2, 5, 5, 6, 2, 4},
          {"one key head", 1, 9, 21, 4, 1, 8},
          {"grouped, causal", 2, 7, 7, 4, 2, 5, {.causal = true}},
          {"causal, last queries", 2, 3, 8, 2, 2, 4, {.causal = true, .causal_alignment = kLowerRight}},
          {"causal, one query", 2, 1, 19, 4, 2, 16, {.causal = true, .causal_alignment = kLowerRight}},
          {"causal, more queries than keys", 1, 8, 3, 2, 1, 4, {.causal = true, .causal_alignment = kLowerRight}},
          {"causal, upper left", 2, 6, 3, 2, 2, 4, {.causal = true, .causal_alignment = kUpperLeft}},
          {"causal, upper left, more keys", 1, 3, 40, 2, 2, 4, {.causal = true, .causal_alignment = kUpperLeft}},
          {"lengths", 3, 4, 6, 2, 2, 4, {.key_lengths = {6, 2, 0}}},
          {"lengths, grouped, causal", 2, 5, 5, 4, 2, 4, {.causal = true, .key_lengths = {3, 5}}},
          {"lengths, long", 2, 140, 230, 2, 1, 3, {.key_lengths = {201, 7}}},
          {"long, causal, last queries", 1, 70, 260, 2, 1, 4, {.causal = true, .causal_alignment = kLowerRight}},
          {"mask of each score", 2, 5, 6, 4, 2, 4, {}, {2, 4, 5, 6}},
          {"mask of positions", 2, 5, 6, 2, 2, 4, {}, {5, 6}},
          {"mask of keys, causal", 2, 5, 5, 2, 2, 4, {.causal = true}, {2, 1, 1, 5}},
          {"bias of each head", 2, 5, 6, 3, 3, 4, {}, {3, 5, 6}, true},
          {"bias, lengths", 2, 5, 6, 2, 1, 4, {.key_lengths = {4, 6}}, {2, 1, 5, 6}, true}};
}

struct MaskOperands {
  Tensor q, k, v, mask;
  explicit MaskOperands(const MaskCase& c)
      : q(random_leaf({c.batch, c.queries, c.heads, c.width}, -2, 2)),
        k(random_leaf({c.batch, c.keys, c.key_heads, c.width}, -2, 2)),
        v(random_leaf({c.batch, c.keys, c.key_heads, c.width})) {
    if (c.mask == Shape{0}) return;
    const Tensor numbers = random_leaf(c.mask, -1, 1);
    if (c.is_additive) {
      for (std::int64_t i = 0; i < numbers.count(); i += 5)
        numbers.data<float>()[i] = -std::numeric_limits<float>::infinity();
      mask = detach(numbers);
      return;
    }
    mask = Tensor::zeros(c.mask, DType::kUInt8);
    for (std::int64_t i = 0; i < numbers.count(); ++i) mask.data<std::uint8_t>()[i] = numbers.data<float>()[i] > -0.4F;
  }
  AttentionOptions options(const MaskCase& c) const {
    AttentionOptions options = c.options;
    options.mask = mask;
    return options;
  }
};

// The number that is added to a score.
double bias_of(const MaskCase& c, const MaskOperands& of, std::int64_t n, std::int64_t h, std::int64_t t,
               std::int64_t s) {
  const std::int64_t offset = c.options.causal_alignment == kLowerRight ? c.keys - c.queries : 0;
  if (c.options.causal && s > t + offset) return kHidden;
  if (!c.options.key_lengths.empty() && s >= c.options.key_lengths[static_cast<std::size_t>(n)]) return kHidden;
  if (!of.mask.defined()) return 0;
  const std::vector<std::int64_t> position = {n, h, t, s};
  std::int64_t at = 0;
  const std::size_t dims = c.mask.dims();
  for (std::size_t d = 0; d < dims; ++d) at = at * c.mask[d] + (c.mask[d] == 1 ? 0 : position[4 - dims + d]);
  if (c.is_additive) return of.mask.data<float>()[at];
  return of.mask.data<std::uint8_t>()[at] != 0 ? 0 : kHidden;
}

std::vector<double> expected_result(const MaskCase& c, const MaskOperands& of) {
  std::vector<double> y(static_cast<std::size_t>(of.q.count()));
  const double scale = 1 / std::sqrt(static_cast<double>(c.width));
  const auto for_each_row = [&](auto&& visit) {
    for (std::int64_t n = 0; n < c.batch; ++n)
      for (std::int64_t t = 0; t < c.queries; ++t)
        for (std::int64_t h = 0; h < c.heads; ++h) visit(n, t, h, ((n * c.queries + t) * c.heads + h) * c.width);
  };
  for_each_row([&](std::int64_t n, std::int64_t t, std::int64_t h, std::int64_t row) {
    const std::int64_t key_head = h / (c.heads / c.key_heads);
    const auto key_at = [&](std::int64_t s) { return ((n * c.keys + s) * c.key_heads + key_head) * c.width; };
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t s = 0; s < c.keys; ++s) {
      double score = bias_of(c, of, n, h, t, s);
      for (std::int64_t d = 0; d < c.width; ++d)
        score += scale * of.q.data<float>()[row + d] * of.k.data<float>()[key_at(s) + d];
      sum += weights.emplace_back(std::exp(score));
    }
    for (std::int64_t s = 0; s < c.keys && sum > 0; ++s)
      for (std::int64_t d = 0; d < c.width; ++d)
        y[static_cast<std::size_t>(row + d)] +=
            weights[static_cast<std::size_t>(s)] / sum * of.v.data<float>()[key_at(s) + d];
  });
  return y;
}

TEST(AttentionMasks, FollowTheFormula) {
  manual_seed(1);
  for (const MaskCase& c : mask_cases()) {
    SCOPED_TRACE(c.name);
    const MaskOperands of(c);
    const Tensor y = scaled_dot_product_attention(of.q, of.k, of.v, of.options(c));
    const std::vector<double> expected = expected_result(c, of);
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(y.data<float>()[i], expected[i], 1e-5) << "element " << i;
  }
}

TEST(AttentionMasks, AgreeWithFiniteDifferences) {
  manual_seed(2);
  for (const MaskCase& c : mask_cases()) {
    SCOPED_TRACE(c.name);
    const MaskOperands of(c);
    check_gradients(
        {of.q, of.k, of.v}, [&] { return weigh(scaled_dot_product_attention(of.q, of.k, of.v, of.options(c))); }, 1e-2F,
        2e-2);
  }
}

TEST(AttentionMasks, ABiasHasAGradient) {
  manual_seed(3);
  const Tensor q = random_leaf({2, 3, 2, 4}), k = random_leaf({2, 5, 2, 4}), v = random_leaf({2, 5, 2, 4}),
               bias = random_leaf({2, 3, 5});
  check_gradients(
      {q, k, v, bias}, [&] { return weigh(scaled_dot_product_attention(q, k, v, {.mask = bias})); }, 1e-2F, 2e-2);
}

TEST(AttentionMasks, OfHalvesHaveTheTypeOfTheQueries) {
  manual_seed(4);
  for (const MaskCase& c : mask_cases()) {
    SCOPED_TRACE(c.name);
    const MaskOperands of(c);
    const std::vector<double> expected = expected_result(c, of);
    for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
      const Tensor y =
          scaled_dot_product_attention(cast(of.q, type), cast(of.k, type), cast(of.v, type), of.options(c));
      ASSERT_EQ(y.dtype(), type);
      const Tensor floats = cast(y, DType::kFloat32);
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(floats.data<float>()[i], expected[i], 0.06);
      weigh(floats).backward();
    }
  }
}

TEST(AttentionMasks, ThePackedFormTakesTheSameOptions) {
  manual_seed(5);
  const Tensor qkv = random_leaf({2, 6, 3, 2, 4});
  const AttentionOptions options{.causal = true, .key_lengths = {4, 6}};
  const auto part = [&](std::int64_t which) { return squeeze(slice(qkv, 2, {which, which + 1}), 2); };
  const Tensor together = scaled_dot_product_attention(qkv, options);
  const Tensor apart = scaled_dot_product_attention(part(0), part(1), part(2), options);
  for (std::int64_t i = 0; i < apart.count(); ++i) ASSERT_EQ(together.data<float>()[i], apart.data<float>()[i]);
  check_gradients(
      {qkv}, [&] { return weigh(scaled_dot_product_attention(qkv, options)); }, 1e-2F, 2e-2);
}

// With values of 1 the result is the sum of a row's probabilities.
TEST(AttentionMasks, DropoutKeepsTheMeanOfTheProbabilities) {
  manual_seed(6);
  const Tensor q = random_leaf({4, 32, 4, 8}), k = random_leaf({4, 64, 4, 8}), ones = Tensor::full({4, 64, 4, 8}, 1);
  const Tensor y = scaled_dot_product_attention(q, k, ones, {.dropout = 0.4F});
  double sum = 0;
  bool all_are_one = true;
  for (const float value : y.span<float>()) {
    sum += value;
    all_are_one = all_are_one && std::abs(value - 1) < 1e-5F;
  }
  EXPECT_FALSE(all_are_one);
  EXPECT_NEAR(sum / static_cast<double>(y.count()), 1, 0.03);
  manual_seed(7);
  const Tensor again = scaled_dot_product_attention(q, k, ones, {.dropout = 0.4F});
  manual_seed(7);
  const Tensor repeated = scaled_dot_product_attention(q, k, ones, {.dropout = 0.4F});
  for (std::int64_t i = 0; i < again.count(); ++i) ASSERT_EQ(again.data<float>()[i], repeated.data<float>()[i]);
}

TEST(AttentionMasks, PaddingMayHoldAnything) {
  manual_seed(8);
  const Tensor q = random_leaf({1, 3, 2, 4}), k = random_leaf({1, 5, 2, 4}), v = random_leaf({1, 5, 2, 4});
  for (const Tensor& each : {k, v})
    std::fill(each.data<float>() + 3 * 8, each.data<float>() + 5 * 8, std::numeric_limits<float>::quiet_NaN());
  for (const float p : {0.0F, 0.5F}) {
    const Tensor y = scaled_dot_product_attention(q, k, v, {.key_lengths = {3}, .dropout = p});
    for (const float each : y.span<float>()) EXPECT_TRUE(std::isfinite(each)) << "dropout " << p;
    weigh(y).backward();
    for (const float each : grad(q).span<float>()) EXPECT_TRUE(std::isfinite(each)) << "dropout " << p;
  }
}

// A mask that requires a gradient takes another way, by products. Rows are longer than a tile of the kernel; in some
// the first tile is hidden, in some all is, and one has a score that is NaN.
TEST(AttentionMasks, OfManyKeysAgreeWithTheProducts) {
  manual_seed(9);
  constexpr std::int64_t kQueries = 37, kKeys = 430;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor q = random_leaf({2, kQueries, 4, 8}), k = random_leaf({2, kKeys, 2, 8}),
               v = random_leaf({2, kKeys, 2, 8});
  const Tensor mask = detach(random_leaf({2, 1, kQueries, kKeys}, -1, 1)).clone();
  for (std::int64_t row = 0; row < 2 * kQueries; ++row) {
    float* const scores = mask.data<float>() + row * kKeys;
    if (row % 5 == 1) std::fill_n(scores, kKeys, -kInfinity);
    if (row % 5 == 2) std::fill_n(scores, 250, -kInfinity);
    for (std::int64_t key = row; key < kKeys; key += 7) scores[key] = -kInfinity;
  }
  mask.data<float>()[3 * kKeys + 201] = std::numeric_limits<float>::quiet_NaN();
  const auto gradients = [&](const Tensor& added) {
    for (const Tensor& each : {q, k, v}) clear_grad(each);
    const Tensor y = scaled_dot_product_attention(q, k, v, {.scale = 0.4F, .mask = added});
    // Not of the row with NaN, whose gradients would make those of all keys NaN.
    weigh(concat({slice(y, 1, {0, 3}), slice(y, 1, {4, kQueries})}, 1)).backward();
    return std::vector{detach(y), grad(q).clone(), grad(k).clone(), grad(v).clone()};
  };
  const Tensor leaf = mask.clone();
  require_grad(leaf);
  EXPECT_TRUE(std::isnan(gradients(mask)[0].data<float>()[3 * 4 * 8]));
  mask.data<float>()[3 * kKeys + 201] = leaf.data<float>()[3 * kKeys + 201] = 0;
  const std::vector<Tensor> fused = gradients(mask), by_products = gradients(leaf);
  for (std::size_t i = 0; i < fused.size(); ++i)
    for (std::int64_t at = 0; at < fused[i].count(); ++at)
      ASSERT_NEAR(fused[i].data<float>()[at], by_products[i].data<float>()[at], 2e-5) << i << ", element " << at;
  for (std::int64_t at = 0; at < 4 * 8; ++at) EXPECT_EQ(fused[0].data<float>()[4 * 8 + at], 0) << "sees no key";
}

// As models mask queries that are padding: softmax does not change, and neither do gradients.
TEST(AttentionMasks, ALargeNumberForAWholeRowCancels) {
  manual_seed(11);
  const Tensor q = random_leaf({1, 4, 2, 8}), k = random_leaf({1, 9, 2, 8}), v = random_leaf({1, 9, 2, 8});
  const auto gradients = [&](float of_row) {
    for (const Tensor& each : {q, k, v}) clear_grad(each);
    const Tensor mask = Tensor::zeros({4, 9});
    std::fill_n(mask.data<float>() + 9, 9, of_row);
    mask.data<float>()[13] = -std::numeric_limits<float>::infinity();
    const Tensor y = scaled_dot_product_attention(q, k, v, {.mask = mask});
    weigh(y).backward();
    return std::vector{detach(y), grad(q).clone(), grad(k).clone(), grad(v).clone()};
  };
  const std::vector<Tensor> expected = gradients(0);
  for (const float of_row : {-1e4F, -1e9F, std::numeric_limits<float>::lowest(), 1e9F}) {
    const std::vector<Tensor> got = gradients(of_row);
    for (std::size_t i = 0; i < got.size(); ++i)
      for (std::int64_t at = 0; at < got[i].count(); ++at)
        ASSERT_EQ(got[i].data<float>()[at], expected[i].data<float>()[at]) << of_row << ": " << i << ", " << at;
  }
}

TEST(AttentionMasks, ThePackedFormTakesAMask) {
  manual_seed(10);
  const Tensor qkv = random_leaf({2, 6, 3, 2, 4}), mask = gt(detach(random_leaf({6, 6}, -1, 1)), -0.5F);
  const auto part = [&](std::int64_t which) { return squeeze(slice(qkv, 2, {which, which + 1}), 2); };
  const Tensor together = scaled_dot_product_attention(qkv, {.mask = mask});
  const Tensor apart = scaled_dot_product_attention(part(0), part(1), part(2), {.mask = mask});
  for (std::int64_t i = 0; i < apart.count(); ++i) ASSERT_EQ(together.data<float>()[i], apart.data<float>()[i]);
  check_gradients(
      {qkv}, [&] { return weigh(scaled_dot_product_attention(qkv, {.mask = mask})); }, 1e-2F, 2e-2);
}

TEST(AttentionMasks, AreRefusedUnlessTheyFit) {
  const Tensor q = Tensor::zeros({2, 3, 4, 4}), k = Tensor::zeros({2, 5, 4, 4}), k3 = Tensor::zeros({2, 5, 3, 4});
  const auto refusal = [&](const AttentionOptions& options) {
    return message_of([&] { scaled_dot_product_attention(q, k, k, options); });
  };
  EXPECT_THAT(refusal({.mask = Tensor::zeros({3, 4})}),
              HasSubstr("the mask is broadcast to (N, H, T, S) = (2, 4, 3, 5), got (3, 4)"));
  EXPECT_THAT(refusal({.mask = Tensor::zeros({3, 5}, DType::kInt64)}), HasSubstr("mask"));
  EXPECT_THAT(refusal({.key_lengths = {1}}), HasSubstr("one key length for each of 2 samples, got 1"));
  EXPECT_THAT(refusal({.key_lengths = {1, 6}}),
              HasSubstr("key_lengths[1] must be in [0, 5], the number of keys, got 6"));
  EXPECT_THAT(refusal({.dropout = 1}), HasSubstr("dropout must be in [0, 1), got 1"));
  EXPECT_THAT(refusal({.causal = true}), AllOf(HasSubstr("3 queries and 5 keys"), HasSubstr("causal_alignment")));
  EXPECT_THAT(message_of([&] { scaled_dot_product_attention(q, k3, k3); }), HasSubstr("where K divides H"));
}

}  // namespace
}  // namespace lockstep
