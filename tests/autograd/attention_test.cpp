// Compares attention with its formula in double and with finite differences: tiles, causal masks, packed operands.
#include "lockstep/autograd/attention.h"

#include <gmock/gmock.h>

#include <tuple>

#include "lockstep/autograd/autocast.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::int64_t batch, queries, keys, heads, width;
  bool causal;
};
// Odd sizes, one key, more positions than a tile of the CPU's kernels.
const std::vector<Case> kCases = {{1, 1, 1, 1, 1, false},     {2, 5, 5, 3, 4, true},    {2, 3, 7, 2, 5, false},
                                  {1, 7, 3, 1, 8, false},     {1, 17, 17, 2, 3, true},  {1, 131, 131, 1, 16, true},
                                  {1, 130, 261, 2, 6, false}, {1, 300, 300, 1, 2, true}};

// y (N, T, H, D) in double.
std::vector<double> expected_attention(const Case& c, const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  std::vector<double> y(static_cast<std::size_t>(q.count()));
  const auto at = [&](std::int64_t n, std::int64_t t, std::int64_t length, std::int64_t h) {
    return ((n * length + t) * c.heads + h) * c.width;
  };
  for (std::int64_t n = 0; n < c.batch; ++n)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t t = 0; t < c.queries; ++t) {
        const std::int64_t seen = c.causal ? t + 1 : c.keys;
        std::vector<double> weights;
        double sum = 0;
        for (std::int64_t s = 0; s < seen; ++s) {
          double score = 0;
          for (std::int64_t d = 0; d < c.width; ++d)
            score += scale * q.data<float>()[at(n, t, c.queries, h) + d] * k.data<float>()[at(n, s, c.keys, h) + d];
          sum += weights.emplace_back(std::exp(score));
        }
        for (std::int64_t s = 0; s < seen; ++s)
          for (std::int64_t d = 0; d < c.width; ++d)
            y[static_cast<std::size_t>(at(n, t, c.queries, h) + d)] +=
                weights[static_cast<std::size_t>(s)] / sum * v.data<float>()[at(n, s, c.keys, h) + d];
      }
  return y;
}

void expect_close(const Tensor& got, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(static_cast<std::size_t>(got.count()), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got.data<float>()[i], expected[i], tolerance) << "element " << i;
}

struct Operands {
  Tensor q, k, v;
  explicit Operands(const Case& c)
      : q(random_leaf({c.batch, c.queries, c.heads, c.width}, -2, 2)),
        k(random_leaf({c.batch, c.keys, c.heads, c.width}, -2, 2)),
        v(random_leaf({c.batch, c.keys, c.heads, c.width})) {}
};

// (N, T, 3, H, D)
Tensor packed(const Operands& of) {
  const Shape& s = of.q.shape();
  const std::int64_t row = s[2] * s[3];
  const Tensor qkv = Tensor::empty({s[0], s[1], 3, s[2], s[3]});
  for (std::int64_t position = 0; position < s[0] * s[1]; ++position) {
    float* to = qkv.data<float>() + 3 * position * row;
    for (const Tensor* each : {&of.q, &of.k, &of.v}) to = std::copy_n(each->data<float>() + position * row, row, to);
  }
  require_grad(qkv);
  return qkv;
}

TEST(Attention, FollowsItsFormula) {
  manual_seed(1);
  for (const Case& c : kCases) {
    const Operands of(c);
    expect_close(scaled_dot_product_attention(of.q, of.k, of.v, {.causal = c.causal}),
                 expected_attention(c, of.q, of.k, of.v, 1 / std::sqrt(static_cast<double>(c.width))), 1e-5);
    expect_close(scaled_dot_product_attention(of.q, of.k, of.v, {.causal = c.causal, .scale = 0.3F}),
                 expected_attention(c, of.q, of.k, of.v, double{0.3F}), 1e-5);
  }
}

TEST(Attention, AgreesWithFiniteDifferences) {
  manual_seed(2);
  for (const Case& c : kCases) {
    if (c.keys == 1) continue;  // with one key the result does not depend on the query: its gradient is zero
    const Operands of(c);
    check_gradients(
        {of.q, of.k, of.v}, [&] { return weigh(scaled_dot_product_attention(of.q, of.k, of.v, {.causal = c.causal})); },
        1e-2F, 2e-2);
  }
}

TEST(Attention, OfPackedOperandsIsTheSame) {
  manual_seed(3);
  for (const Case& c : kCases) {
    if (c.queries != c.keys) continue;
    const Operands of(c);
    const Tensor qkv = packed(of);
    const Tensor apart = scaled_dot_product_attention(of.q, of.k, of.v, {.causal = c.causal});
    const Tensor together = scaled_dot_product_attention(qkv, {.causal = c.causal});
    for (std::int64_t i = 0; i < apart.count(); ++i) ASSERT_EQ(together.data<float>()[i], apart.data<float>()[i]);
    weigh(apart).backward();
    weigh(together).backward();
    const Operands grads(c);
    std::copy_n(grad(of.q).data<float>(), of.q.count(), grads.q.data<float>());
    std::copy_n(grad(of.k).data<float>(), of.k.count(), grads.k.data<float>());
    std::copy_n(grad(of.v).data<float>(), of.v.count(), grads.v.data<float>());
    const Tensor expected = packed(grads);
    for (std::int64_t i = 0; i < qkv.count(); ++i)
      ASSERT_EQ(grad(qkv).data<float>()[i], expected.data<float>()[i]) << "element " << i;
  }
}

TEST(Attention, OfOneTensorInAllPlaces) {
  manual_seed(4);
  const Tensor x = random_leaf({1, 6, 2, 4});
  check_gradients(
      {x}, [&] { return weigh(scaled_dot_product_attention(x, x, x, {.causal = true})); }, 1e-2F, 2e-2);
  const Tensor scaled = random_leaf({1, 6, 2, 4});
  check_gradients(
      {scaled},
      [&] {
        const Tensor y = scale(scaled, 2);
        return weigh(scaled_dot_product_attention(y, y, y));
      },
      1e-2F, 2e-2);
}

TEST(Attention, TakesHalves) {
  manual_seed(5);
  const Case c{2, 5, 5, 2, 8, true};
  const Operands of(c);
  const std::vector<double> expected = expected_attention(c, of.q, of.k, of.v, 1 / std::sqrt(8.0));
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const AutoCast half(type);
    const Tensor y = scaled_dot_product_attention(of.q, of.k, of.v, {.causal = true});
    EXPECT_EQ(y.dtype(), type);
    expect_close(cast(y, DType::kFloat32), expected, 0.03);
  }
}

TEST(Attention, OfAnEmptyBatchIsEmpty) {
  const Tensor x = random_leaf({0, 3, 2, 4});
  const Tensor y = scaled_dot_product_attention(x, x, x);
  EXPECT_EQ(y.shape(), x.shape());
  weigh(y).backward();
  EXPECT_EQ(grad(x).count(), 0);
}

TEST(Attention, SaysWhatItRefuses) {
  const Tensor q = Tensor::zeros({2, 3, 2, 4}), k = Tensor::zeros({2, 5, 2, 4}), none = Tensor::zeros({2, 0, 2, 4});
  EXPECT_THAT(message_of([&] { scaled_dot_product_attention(q, k, q); }),
              HasSubstr("got q (2, 3, 2, 4), k (2, 5, 2, 4), v (2, 3, 2, 4)"));
  EXPECT_THAT(message_of([&] { scaled_dot_product_attention(q, k, k, {.causal = true}); }),
              HasSubstr("as many keys as queries"));
  EXPECT_THAT(message_of([&] { scaled_dot_product_attention(q, none, none); }), HasSubstr("has no keys to attend to"));
  EXPECT_THAT(message_of([&] {
                scaled_dot_product_attention(Tensor::zeros({2, 3, 2, 2, 4}));
              }),
              HasSubstr("qkv (N, T, 3, H, D) expected, got (2, 3, 2, 2, 4)"));
}

}  // namespace
}  // namespace lockstep
