// Embeddings, matrix products, linear layers with any leading dimensions, softmax, dropout.
#include <gmock/gmock.h>

#include <numeric>

#include "lockstep/autograd/autocast.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

Tensor indices_of(const std::vector<std::int64_t>& values, const Shape& shape) {
  return Tensor::from(std::span(values), shape);
}

TEST(Embedding, LooksUpRowsAndAddsTheirGradients) {
  manual_seed(1);
  const Tensor weight = random_leaf({5, 3});
  const std::vector<std::int64_t> words = {4, 0, 4, 2, 4, 1};
  const Tensor indices = indices_of(words, {2, 3}), y = embedding(weight, indices);
  EXPECT_EQ(y.shape(), (Shape{2, 3, 3}));
  for (std::size_t n = 0; n < words.size(); ++n)
    for (std::size_t d = 0; d < 3; ++d) EXPECT_EQ(y.data<float>()[3 * n + d], weight.data<float>()[3 * words[n] + d]);
  check_gradients(
      {weight}, [&] { return weigh(embedding(weight, indices)); }, 0.1F);
  for (std::size_t d = 0; d < 3; ++d) EXPECT_EQ(grad(weight).data<float>()[3 * 3 + d], 0) << "row 3 was not looked up";
}

TEST(Embedding, LeavesThePaddingRowAlone) {
  manual_seed(2);
  const Tensor weight = random_leaf({4, 2}), indices = indices_of({1, 3, 1}, {3});
  weigh(embedding(weight, indices, 1)).backward();
  for (const std::size_t row : {0U, 1U, 2U}) EXPECT_EQ(grad(weight).data<float>()[2 * row], 0);
  EXPECT_NE(grad(weight).data<float>()[2 * 3], 0);
}

TEST(Embedding, OfNothing) {
  const Tensor weight = random_leaf({4, 2}), y = embedding(weight, indices_of({}, {2, 0}));
  EXPECT_EQ(y.shape(), (Shape{2, 0, 2}));
  weigh(y).backward();
  EXPECT_THAT(grad(weight).span<float>(), ::testing::Each(0));
}

TEST(Embedding, NamesTheIndexThatIsNoRow) {
  const Tensor weight = Tensor::zeros({4, 2});
  EXPECT_THAT(message_of([&] {
                embedding(weight, indices_of({0, 4}, {2}));
              }),
              HasSubstr("embedding: index 4 at position 1 is outside 0..3"));
  EXPECT_THAT(message_of([&] { embedding(weight, indices_of({-1}, {1})); }), HasSubstr("index -1 at position 0"));
  EXPECT_THAT(message_of([&] { embedding(weight, weight); }),
              HasSubstr("embedding: indices must be int64, got float32"));
  EXPECT_THAT(message_of([&] { embedding(weight, indices_of({0}, {1}), 4); }), HasSubstr("padding 4 is outside 0..3"));
}

// c (B, M, N) in double, for operands as they are stored.
void expect_product(const Tensor& c, const Tensor& a, const Tensor& b, const MatmulOptions& options, bool one_b) {
  const std::size_t dims = c.shape().dims();
  const std::int64_t m = c.shape()[dims - 2], n = c.shape()[dims - 1],
                     k = a.shape()[a.shape().dims() - (options.transpose_a ? 2 : 1)];
  for (std::int64_t i = 0; i < c.count(); ++i) {
    const std::int64_t batch = i / (m * n), row = i / n % m, column = i % n;
    const float *left = a.data<float>() + batch * m * k, *right = b.data<float>() + (one_b ? 0 : batch * k * n);
    double sum = 0;
    for (std::int64_t j = 0; j < k; ++j)
      sum += static_cast<double>(left[options.transpose_a ? j * m + row : row * k + j]) *
             right[options.transpose_b ? column * k + j : j * n + column];
    ASSERT_NEAR(c.data<float>()[i], sum, 1e-4) << "element " << i;
  }
}

TEST(Matmul, MultipliesBatchesInAnyOrientation) {
  manual_seed(3);
  for (const bool flip_a : {false, true})
    for (const bool flip_b : {false, true}) {
      const MatmulOptions options{flip_a, flip_b};
      const auto shape = [](std::vector<std::int64_t> leading, std::int64_t rows, std::int64_t columns, bool flip) {
        leading.push_back(flip ? columns : rows);
        leading.push_back(flip ? rows : columns);
        return Shape(leading);
      };
      for (const std::vector<std::int64_t>& leading : {std::vector<std::int64_t>{}, {3}, {2, 3}}) {
        const Tensor a = random_leaf(shape(leading, 5, 7, flip_a)), b = random_leaf(shape(leading, 7, 4, flip_b));
        expect_product(matmul(a, b, options), a, b, options, false);
        check_gradients(
            {a, b}, [&] { return weigh(matmul(a, b, options)); }, 0.1F);
      }
      if (flip_a) continue;
      const Tensor a = random_leaf({2, 3, 5, 7}), b = random_leaf(shape({}, 7, 4, flip_b));
      expect_product(matmul(a, b, options), a, b, options, true);
      check_gradients(
          {a, b}, [&] { return weigh(matmul(a, b, options)); }, 0.1F);
    }
}

TEST(Matmul, OfEmptyOperands) {
  const Tensor a = random_leaf({0, 2, 3}), b = random_leaf({3, 4}), c = matmul(a, b);
  EXPECT_EQ(c.shape(), (Shape{0, 2, 4}));
  weigh(c).backward();
  EXPECT_THAT(grad(b).span<float>(), ::testing::Each(0));
  const Tensor zero = matmul(Tensor::zeros({2, 2, 0}), Tensor::zeros({2, 0, 3}));
  for (const float value : zero.span<float>()) EXPECT_EQ(value, 0);
}

TEST(Matmul, RunsInSixteenBitsUnderAutoCast) {
  manual_seed(4);
  const Tensor a = random_leaf({2, 3, 4}), b = random_leaf({2, 4, 5});
  const Tensor c = [&] {
    const AutoCast half(DType::kBFloat16);
    return matmul(a, b);
  }();
  EXPECT_EQ(c.dtype(), DType::kBFloat16);
  weigh(cast(c, DType::kFloat32)).backward();
  EXPECT_EQ(grad(a).dtype(), DType::kFloat32);
}

TEST(Matmul, SaysWhatItRefuses) {
  EXPECT_THAT(message_of([] {
                matmul(Tensor::zeros({2, 3}), Tensor::zeros({2, 3}));
              }),
              HasSubstr("a (2, 3) and b (2, 3) do not match"));
  EXPECT_THAT(message_of([] {
                matmul(Tensor::zeros({2, 2, 3}), Tensor::zeros({3, 3, 1}));
              }),
              HasSubstr("do not match"));
  EXPECT_THAT(message_of([] {
                matmul(Tensor::zeros({2, 3, 2}), Tensor::zeros({3, 1}), {.transpose_a = true});
              }),
              HasSubstr("a (2, 3, 2) transposed"));
}

TEST(Linear, TakesAnyLeadingDimensions) {
  manual_seed(5);
  const Tensor x = random_leaf({2, 3, 4}), weight = random_leaf({5, 4}), bias = random_leaf({5});
  const Tensor y = linear(x, weight, bias);
  EXPECT_EQ(y.shape(), (Shape{2, 3, 5}));
  const Tensor rows = linear(reshape(x, {6, 4}), weight, bias);
  for (std::int64_t i = 0; i < y.count(); ++i) EXPECT_EQ(y.data<float>()[i], rows.data<float>()[i]);
  check_gradients(
      {x, weight, bias}, [&] { return weigh(linear(x, weight, bias)); }, 0.1F);
  EXPECT_EQ(linear(Tensor::zeros({4}), weight, bias).shape(), (Shape{5}));
  EXPECT_THAT(message_of([&] { linear(Tensor::zeros({}), weight, bias); }), HasSubstr("linear: x is a scalar"));
}

TEST(Softmax, FollowsItsFormulaAndFiniteDifferences) {
  manual_seed(6);
  for (const Shape& shape : {Shape{3, 1}, Shape{2, 3, 5}, Shape{2, 33}, Shape{4, 100}}) {
    const Tensor x = random_leaf(shape, -30, 30), y = softmax(x), logarithm = log_softmax(x);
    const std::int64_t width = shape[shape.dims() - 1];
    for (std::int64_t row = 0; row < x.count(); row += width) {
      const float* const values = x.data<float>() + row;
      const double sum = std::accumulate(values, values + width, 0.0,
                                         [](double so_far, float value) { return so_far + std::exp(double{value}); });
      for (std::int64_t c = 0; c < width; ++c) {
        EXPECT_NEAR(y.data<float>()[row + c], std::exp(double{values[c]}) / sum, 1e-6);
        EXPECT_NEAR(logarithm.data<float>()[row + c], values[c] - std::log(sum), 1e-5);
      }
    }
    if (width == 1) continue;  // constant
    const Tensor near = random_leaf(shape, -2, 2);
    check_gradients({near}, [&] { return weigh(softmax(near)); });
    check_gradients({near}, [&] { return weigh(log_softmax(near)); });
  }
  EXPECT_EQ(softmax(Tensor::zeros({0, 3})).shape(), (Shape{0, 3}));
  EXPECT_THAT(message_of([] { log_softmax(Tensor::zeros({})); }), HasSubstr("log_softmax: x is a scalar"));
}

TEST(Softmax, LetsNaNThrough) {
  const Tensor x = Tensor::zeros({2, 20});
  x.data<float>()[17] = std::nanf("");
  const Tensor y = softmax(x), logarithm = log_softmax(x);
  for (std::int64_t c = 0; c < 20; ++c) {
    EXPECT_TRUE(std::isnan(y.data<float>()[c]));
    EXPECT_TRUE(std::isnan(logarithm.data<float>()[c]));
    EXPECT_FALSE(std::isnan(y.data<float>()[20 + c]));
  }
}

Tensor rows_of_ones(std::int64_t rows) { return Tensor::full({rows, 37}, 1); }

TEST(Dropout, KeepsTheShareThatItSaysAndScalesIt) {
  manual_seed(7);
  const Tensor y = dropout(Tensor::full({100, 100}, 3), 0.25F);
  std::int64_t kept = 0;
  for (const float value : y.span<float>()) {
    EXPECT_TRUE(value == 0 || value == 4) << value;
    kept += value != 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(kept), 7500, 250);  // more than five standard deviations
}

TEST(Dropout, DrawsTheSameFromTheSameState) {
  manual_seed(8);
  const RandomState before = random_state();
  const auto values = [] {
    const Tensor y = dropout(rows_of_ones(3), 0.5F);
    return std::vector<float>(y.span<float>().begin(), y.span<float>().end());
  };
  const std::vector<float> first = values(), second = values();
  EXPECT_NE(first, second);
  set_random_state(before);
  EXPECT_EQ(values(), first);
  EXPECT_EQ(values(), second);
}

TEST(Dropout, DependsOnTheSampleNotOnTheRank) {
  const auto draw = [](std::int64_t first, std::int64_t rows) {
    manual_seed(9);
    set_first_sample(first);
    const Tensor y = dropout(rows_of_ones(rows), 0.5F);
    set_first_sample(0);
    return y;
  };
  const Tensor whole = draw(0, 6), share = draw(3, 3);
  for (std::int64_t i = 0; i < share.count(); ++i) EXPECT_EQ(share.data<float>()[i], whole.data<float>()[3 * 37 + i]);
  for (const std::int64_t rank : {0, 1, 2}) {
    manual_seed(9);
    set_sample_numbers({.first = rank, .stride = 3});
    const Tensor dealt = dropout(rows_of_ones(2), 0.5F);
    set_sample_numbers({});
    for (std::int64_t i = 0; i < dealt.count(); ++i)
      EXPECT_EQ(dealt.data<float>()[i], whole.data<float>()[(rank + i / 37 * 3) * 37 + i % 37]) << "rank " << rank;
  }
  EXPECT_EQ((SampleNumbers{.first = 1, .stride = 3}.from_row(2)), (SampleNumbers{.first = 7, .stride = 3}));
  EXPECT_THAT(message_of([] { set_first_sample(-1); }), HasSubstr("set_first_sample: -1 is negative"));
  EXPECT_THAT(message_of([] { set_sample_numbers({.first = -1}); }),
              HasSubstr("set_sample_numbers: got first -1, stride 1: first must be at least 0"));
  EXPECT_THAT(message_of([] { set_sample_numbers({.stride = 0}); }),
              HasSubstr("set_sample_numbers: got first 0, stride 0"));
}

TEST(Dropout, MasksTheGradientAlike) {
  manual_seed(10);
  const Tensor x = random_leaf({5, 37});
  const RandomState before = random_state();
  check_gradients(
      {x},
      [&] {
        set_random_state(before);
        return weigh(dropout(x, 0.3F));
      },
      0.1F);
}

TEST(Dropout, IsTheSameInSixteenBits) {
  const Tensor x = rows_of_ones(4);
  const auto draw = [&](DType type) {
    manual_seed(11);
    return cast(dropout(cast(x, type), 0.5F), DType::kFloat32);
  };
  const Tensor expected = draw(DType::kFloat32);
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const Tensor got = draw(type);
    for (std::int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(got.data<float>()[i], expected.data<float>()[i]);
  }
}

TEST(Dropout, DoesNothingOutsideOfTraining) {
  manual_seed(12);
  const RandomState before = random_state();
  const Tensor x = rows_of_ones(2);
  EXPECT_TRUE(dropout(x, 0.5F, false).is_same(x));
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_EQ(random_state(), before);
  EXPECT_THAT(message_of([&] { dropout(x, 1); }), HasSubstr("dropout: p must be in [0, 1), got 1"));
}

}  // namespace
}  // namespace lockstep
