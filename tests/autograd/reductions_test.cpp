// Sums, means and maxima: values are compared in double, gradients with finite differences.
#include "lockstep/autograd/reductions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

struct ReductionCase {
  Shape x;
  std::vector<int> dims;
  Shape result, kept;
};

const ReductionCase kReductions[] = {{{7}, {0}, {}, {1}},
                                     {{}, {}, {}, {}},
                                     {{3, 5}, {}, {}, {1, 1}},
                                     {{3, 5}, {0}, {5}, {1, 5}},
                                     {{3, 5}, {-1}, {3}, {3, 1}},
                                     {{2, 3, 4, 5}, {0, 2}, {3, 5}, {1, 3, 1, 5}},
                                     {{2, 3, 4, 5}, {3, 1}, {2, 4}, {2, 1, 4, 1}},
                                     {{2, 3, 4, 5}, {0, 1, 2}, {5}, {1, 1, 1, 5}},
                                     {{2, 3, 2, 3, 2, 3}, {0, 2, 4}, {3, 3, 3}, {1, 3, 1, 3, 1, 3}},
                                     {{700, 3}, {0}, {3}, {1, 3}},
                                     {{4, 1, 3}, {1}, {4, 3}, {4, 1, 3}},
                                     {{300, 40}, {0}, {40}, {1, 40}}};

// The element of the kept shape to which element i of x belongs.
std::int64_t target_of(std::int64_t i, const Shape& x, const Shape& kept) {
  std::int64_t target = 0, stride = 1;
  for (std::size_t dim = x.dims(); dim-- > 0;) {
    target += kept[dim] == 1 ? 0 : i % x[dim] * stride;
    i /= x[dim];
    stride *= kept[dim];
  }
  return target;
}

TEST(Reductions, SumsAndMeansAreTheFormulas) {
  manual_seed(1);
  for (const ReductionCase& c : kReductions) {
    SCOPED_TRACE(c.x.text());
    const Tensor x = random_leaf(c.x);
    std::vector<double> sums(static_cast<std::size_t>(c.kept.count()));
    for (std::int64_t i = 0; i < x.count(); ++i)
      sums[static_cast<std::size_t>(target_of(i, c.x, c.kept))] += double{x.data<float>()[i]};
    const Tensor total = sum(x, Dims(c.dims)), average = mean(x, Dims(c.dims), true);
    ASSERT_EQ(total.shape(), c.result);
    ASSERT_EQ(average.shape(), c.kept);
    const double n = static_cast<double>(x.count()) / static_cast<double>(c.kept.count());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      EXPECT_NEAR(total.span<float>()[i], sums[i], 1e-5);
      EXPECT_NEAR(average.span<float>()[i], sums[i] / n, 1e-6);
    }
    check_gradients(
        {x}, [&] { return weigh(sum(x, Dims(c.dims))); }, 0.1f);
    check_gradients(
        {x}, [&] { return weigh(mean(x, Dims(c.dims), true)); }, 0.1f);
  }
}

TEST(Reductions, OfNothing) {
  const Tensor none = random_leaf({0, 3});
  EXPECT_EQ(sum(none).item(), 0);
  EXPECT_TRUE(std::isnan(mean(none).item()));
  EXPECT_EQ(sum(none, 1).shape(), (Shape{0}));
  const Tensor zeros = sum(none, 0);
  ASSERT_EQ(zeros.shape(), (Shape{3}));
  for (const float value : zeros.span<float>()) EXPECT_EQ(value, 0);
  EXPECT_EQ(sum(Tensor::zeros({2, 3, 0}), {0, 2}).shape(), (Shape{3}));
  sum(none).backward();
  EXPECT_EQ(grad(none).shape(), (Shape{0, 3}));
  EXPECT_EQ(max(Tensor::zeros({0, 3}), 1).indices.shape(), (Shape{0}));
  EXPECT_THAT(refusal([&] { max(none, 0); }), ::testing::HasSubstr("max: x (0, 3) is empty"));
  EXPECT_THAT(refusal([&] { argmax(none); }), ::testing::HasSubstr("argmax: x (0, 3) is empty"));
}

// The same values in another order of memory, for which a sum in float32 would lose precision.
TEST(Reductions, LongSumsAreAccurate) {
  const std::int64_t n = 1 << 22;
  const Tensor x = Tensor::full({n}, 0.1f);
  EXPECT_NEAR(sum(x).item(), double{0.1f} * static_cast<double>(n), 0.1);
  EXPECT_NEAR(mean(x.reshaped({n / 2, 2}), 0).span<float>()[1], 0.1, 1e-6);
}

TEST(Maxima, FirstOfEqualsAndNan) {
  const std::array<float, 8> values = {
      1, 5, 5, std::numeric_limits<float>::quiet_NaN(), 2, std::numeric_limits<float>::quiet_NaN(), -1, 5};
  const Tensor row = Tensor::from<float>(values, {8});
  EXPECT_TRUE(std::isnan(max(row).item()));
  EXPECT_EQ(argmax(row).data<std::int64_t>()[0], 3);
  const auto [largest, places] = max(row.reshaped({4, 2}), 1);
  EXPECT_THAT(places.span<std::int64_t>(), ::testing::ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(largest.span<float>()[0], 5);
  EXPECT_TRUE(std::isnan(largest.span<float>()[1]));
  const Tensor down = argmax(row.reshaped({2, 4}), 0, true);  // columns 1|2, 5|nan, 5|-1, nan|5
  EXPECT_EQ(down.shape(), (Shape{1, 4}));
  EXPECT_THAT(down.span<std::int64_t>(), ::testing::ElementsAre(1, 1, 0, 0));
  EXPECT_EQ(argmax(Tensor::zeros({100})).data<std::int64_t>()[0], 0);
}

TEST(Maxima, OfEachLine) {
  const Shape shape = {3, 4, 5, 6};
  const Tensor x = spaced_leaf(shape, 3);
  for (int dim = -1; dim < 4; ++dim) {
    const std::size_t along = dim < 0 ? 3 : static_cast<std::size_t>(dim);
    const auto [values, indices] = max(x, dim, true);
    std::int64_t inner = 1;
    for (std::size_t d = along + 1; d < 4; ++d) inner *= shape[d];
    std::map<std::int64_t, std::pair<float, std::int64_t>> best;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const std::int64_t place = i / inner % shape[along], line = i / inner / shape[along] * inner + i % inner;
      const float value = x.data<float>()[i];
      if (best.count(line) == 0 || value > best[line].first) best[line] = {value, place};
    }
    ASSERT_EQ(static_cast<std::int64_t>(best.size()), values.count());
    for (std::int64_t i = 0; i < values.count(); ++i) {
      ASSERT_EQ(values.data<float>()[i], best[i].first);
      ASSERT_EQ(indices.data<std::int64_t>()[i], best[i].second);
    }
    check_gradients(
        {x}, [&] { return weigh(max(x, dim).values); }, 1e-4f, 2e-2);
  }
  check_gradients(
      {x}, [&] { return max(x); }, 1e-4f, 2e-2);
  check_gradients(
      {x},
      [&] {
        return weigh(amax(x, {0, -1}));
      },
      1e-4f, 2e-2);
  EXPECT_EQ(amax(x, {0, -1}, true).shape(), (Shape{1, 4, 5, 1}));
  EXPECT_EQ(amax(x, {}).item(), max(x).item());
}

TEST(Minima, AreMaximaOfTheNegative) {
  const Tensor x = spaced_leaf({3, 4, 5, 6}, 4), negative = neg(x);
  for (int dim = -1; dim < 4; ++dim) {
    const auto [values, indices] = min(x, dim, true);
    const auto [largest, places] = max(negative, dim, true);
    ASSERT_EQ(values.shape(), largest.shape());
    for (std::int64_t i = 0; i < values.count(); ++i) {
      ASSERT_EQ(values.data<float>()[i], -largest.data<float>()[i]);
      ASSERT_EQ(indices.data<std::int64_t>()[i], places.data<std::int64_t>()[i]);
    }
    check_gradients(
        {x}, [&] { return weigh(min(x, dim).values); }, 1e-4f, 2e-2);
  }
  EXPECT_EQ(min(x).item(), -max(negative).item());
  EXPECT_EQ(argmin(x).data<std::int64_t>()[0], argmax(negative).data<std::int64_t>()[0]);
  EXPECT_EQ(argmin(x, 1).shape(), (Shape{3, 5, 6}));
  for (const Dims& dims : {Dims{0, -1}, Dims{1, 2}, Dims{3, 2}, Dims{0, 1}, Dims{}}) {
    const Tensor smallest = amin(x, dims), largest = amax(negative, dims);
    for (std::int64_t i = 0; i < smallest.count(); ++i) ASSERT_EQ(smallest.data<float>()[i], -largest.data<float>()[i]);
    check_gradients(
        {x}, [&] { return weigh(amin(x, dims, true)); }, 1e-4f, 2e-2);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor row = Tensor::from<float>(std::array{3.0F, 1.0F, nan, 1.0F}, {4});
  EXPECT_TRUE(std::isnan(min(row).item()));
  EXPECT_EQ(argmin(row).data<std::int64_t>()[0], 2);
  EXPECT_EQ(argmin(slice(row, 0, {0, 2})).data<std::int64_t>()[0], 1);
  EXPECT_THAT(refusal([&] {
                min(Tensor::zeros({0, 3}), 0);
              }),
              ::testing::HasSubstr("min: x (0, 3) is empty, so it has no minimum"));
}

// Each element's formula over the elements of its result, in double.
template <typename Formula> std::vector<double> formula_of_each(const Tensor& x, const Shape& kept, Formula formula) {
  std::vector<std::vector<double>> groups(static_cast<std::size_t>(kept.count()));
  for (std::int64_t i = 0; i < x.count(); ++i)
    groups[static_cast<std::size_t>(target_of(i, x.shape(), kept))].push_back(double{x.data<float>()[i]});
  std::vector<double> results;
  for (const std::vector<double>& group : groups) results.push_back(formula(group));
  return results;
}

double mean_of(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total / static_cast<double>(values.size());
}

double squares_around(const std::vector<double>& values, double centre) {
  double total = 0;
  for (const double value : values) total += (value - centre) * (value - centre);
  return total;
}

using Group = std::vector<double>;

TEST(Statistics, AreTheFormulas) {
  manual_seed(5);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const ReductionCase& c : kReductions) {
    SCOPED_TRACE(c.x.text());
    const Tensor x = random_leaf(c.x, -2, 2);
    const Dims dims(c.dims);
    const auto same = [&](const Tensor& got, const Shape& shape, const auto& formula) {
      const std::vector<double> wanted = formula_of_each(x, c.kept, formula);
      ASSERT_EQ(got.shape(), shape);
      for (std::size_t i = 0; i < wanted.size(); ++i)
        if (std::isnan(wanted[i]))
          EXPECT_TRUE(std::isnan(got.span<float>()[i]));
        else
          EXPECT_NEAR(got.span<float>()[i], wanted[i], 2e-6 * (1 + std::abs(wanted[i])));
    };
    const auto variance = [](const Group& g) {
      return squares_around(g, mean_of(g)) / (static_cast<double>(g.size()) - 1);
    };
    same(var(x, dims), c.result, variance);
    same(var(x, dims, true, 0), c.kept,
         [](const Group& g) { return squares_around(g, mean_of(g)) / static_cast<double>(g.size()); });
    same(stddev(x, dims, true), c.kept, [&](const Group& g) { return std::sqrt(variance(g)); });
    same(norm(x, 2, dims), c.result, [](const Group& g) { return std::sqrt(squares_around(g, 0)); });
    same(norm(x, 1, dims, true), c.kept, [](const Group& g) {
      double total = 0;
      for (const double value : g) total += std::abs(value);
      return total;
    });
    same(norm(x, kInfinity, dims), c.result, [](const Group& g) {
      double largest = 0;
      for (const double value : g) largest = std::max(largest, std::abs(value));
      return largest;
    });
    same(logsumexp(x, dims), c.result, [](const Group& g) {
      double total = 0;
      for (const double value : g) total += std::exp(value);
      return std::log(total);
    });
    same(prod(x, dims), c.result, [](const Group& g) {
      double product = 1;
      for (const double value : g) product *= value;
      return product;
    });
  }
}

TEST(Statistics, GradientsAgreeWithFiniteDifferences) {
  const Tensor x = spaced_leaf({4, 3, 5}, 6);
  for (const Dims& dims : {Dims{}, Dims{1}, Dims{0, -1}, Dims{-1}}) {
    check_gradients(
        {x}, [&] { return weigh(var(x, dims)); }, 1e-2f);
    check_gradients(
        {x}, [&] { return weigh(stddev(x, dims, true, 0)); }, 1e-2f);
    check_gradients(
        {x}, [&] { return weigh(norm(x, 2, dims)); }, 1e-2f);
    check_gradients(
        {x}, [&] { return weigh(norm(x, 1, dims, true)); }, 1e-2f);
    check_gradients(
        {x}, [&] { return weigh(norm(x, std::numeric_limits<float>::infinity(), dims)); }, 1e-4f, 2e-2);
    check_gradients(
        {x}, [&] { return weigh(logsumexp(x, dims)); }, 1e-2f);
  }
  for (const Dims& dims : {Dims{1}, Dims{0}, Dims{1, 0}})
    check_gradients(
        {x}, [&] { return weigh(prod(x, dims)); }, 1e-3f);
}

// As PyTorch's: no NaN where the root is 0 or a factor is 0.
TEST(Statistics, GradientsAtTheirEdges) {
  const Tensor same = Tensor::full({3}, 2), zeros = Tensor::zeros({3});
  require_grad(same), require_grad(zeros);
  stddev(same).backward();
  EXPECT_THAT(grad(same).span<float>(), ::testing::Each(0.0F));
  norm(zeros).backward();
  EXPECT_THAT(grad(zeros).span<float>(), ::testing::Each(0.0F));
  const Tensor ties = Tensor::from<float>(std::array{-3.0F, 3.0F, 1.0F}, {3});
  require_grad(ties);
  norm(ties, std::numeric_limits<float>::infinity()).backward();
  EXPECT_THAT(grad(ties).span<float>(), ::testing::ElementsAre(-0.5F, 0.5F, 0));
  const Tensor factors = Tensor::from<float>(std::array{2.0F, 0.0F, 5.0F, 0.0F, 0.0F, 3.0F, 2.0F, 4.0F, 5.0F}, {3, 3});
  require_grad(factors);
  sum(prod(factors, 1)).backward();
  EXPECT_THAT(grad(factors).span<float>(), ::testing::ElementsAre(0, 10, 0, 0, 0, 0, 20, 10, 8));
  EXPECT_EQ(prod(Tensor::zeros({0})).item(), 1);
  EXPECT_TRUE(std::isnan(var(Tensor::full({1}, 3)).item()));
  EXPECT_EQ(logsumexp(Tensor::full({2}, 1000), 0).item(), 1000.69314718F);
  EXPECT_EQ(logsumexp(Tensor::full({2}, -std::numeric_limits<float>::infinity()), 0).item(),
            -std::numeric_limits<float>::infinity());
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  const Tensor rows = Tensor::from<float>(
      std::array{minus_infinity, minus_infinity, 0.0F, minus_infinity, std::nanf(""), minus_infinity}, {3, 2});
  require_grad(rows);
  sum(logsumexp(rows, 1)).backward();
  EXPECT_THAT(grad(rows).span<float>().first(4), ::testing::ElementsAre(0, 0, 1, 0));
  EXPECT_TRUE(std::isnan(grad(rows).span<float>()[4]));
  EXPECT_THAT(refusal([&] { norm(same, 3); }), ::testing::HasSubstr("norm: got p = 3, expected 1, 2 or infinity"));
}

TEST(Statistics, OfHalvesAreRoundedOnce) {
  manual_seed(6);
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const Tensor x = cast(random_leaf({33, 20}, 0.5F, 2), type), wide = cast(x, DType::kFloat32);
    const auto same = [&](const Tensor& half, const Tensor& full) {
      ASSERT_EQ(half.dtype(), type);
      const Tensor got = cast(half, DType::kFloat32);
      for (std::int64_t i = 0; i < full.count(); ++i)
        ASSERT_NEAR(got.data<float>()[i], full.data<float>()[i], 4e-3 * (1 + std::abs(full.data<float>()[i])));
    };
    same(var(x, 1), var(wide, 1)), same(norm(x, 2, 0), norm(wide, 2, 0)), same(norm(x, 1, 1), norm(wide, 1, 1));
    same(amin(x, {0}), amin(wide, {0})), same(cumsum(slice(x, 1, {0, 4}), 1), cumsum(slice(wide, 1, {0, 4}), 1));
  }
}

TEST(Refusals, NameTheReduction) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_THAT(refusal([&] { sum(x, 2); }),
              ::testing::HasSubstr("sum: dimension 2 does not exist in shape (2, 3): expected -2 to 1"));
  EXPECT_THAT(refusal([&] {
                mean(x, {0, -2});
              }),
              ::testing::HasSubstr("mean: dimension -2 of shape (2, 3) is given twice"));
  EXPECT_THAT(refusal([&] { argmax(Tensor::zeros({2}, DType::kInt64)); }),
              ::testing::HasSubstr("argmax: x must be float32"));
}

}  // namespace
}  // namespace lockstep
