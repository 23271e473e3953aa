// Running sums and sorted lines: values are compared with index arithmetic, gradients with finite differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

TEST(Cumsum, IsTheRunningSumAlongEachDimension) {
  manual_seed(1);
  const Tensor x = random_leaf({3, 4, 5});
  for (int dim = -1; dim < 3; ++dim) {
    const Tensor y = cumsum(x, dim);
    const std::int64_t along = dim < 0 ? 2 : dim, n = x.shape()[along], inner = along == 0 ? 20 : along == 1 ? 5 : 1;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      double wanted = 0;
      for (std::int64_t k = 0; k <= i / inner % n; ++k) wanted += double{x.data<float>()[i - k * inner]};
      ASSERT_NEAR(y.data<float>()[i], wanted, 1e-6);
    }
    check_gradients(
        {x}, [&] { return weigh(cumsum(x, dim)); }, 0.1f);
  }
  check_gradients({x}, [&] { return weigh(cumsum(x, 1) * x) + weigh(x); });  // a second use of x
  EXPECT_EQ(cumsum(Tensor::full({1 << 24}, 0.1F), 0).data<float>()[(1 << 24) - 1], 0.1F * (1 << 24));
  EXPECT_EQ(cumsum(Tensor::zeros({0, 3}), 0).shape(), (Shape{0, 3}));
  const AutoCast half(DType::kBFloat16);
  EXPECT_EQ(cumsum(cast(detach(x), DType::kBFloat16), 0).dtype(), DType::kFloat32);
}

TEST(Sort, PutsEachLineInOrder) {
  const Shape shape = {3, 140, 5};
  const Tensor x = spaced_leaf(shape, 2);
  for (int dim = -1; dim < 3; ++dim)
    for (const bool descending : {false, true}) {
      const auto [values, indices] = sort(x, dim, descending);
      ASSERT_EQ(values.shape(), shape);
      const Tensor picked = gather(detach(x), dim, indices);
      ASSERT_TRUE(std::equal(picked.span<float>().begin(), picked.span<float>().end(), values.span<float>().begin()));
      const std::int64_t along = dim < 0 ? 2 : dim, n = shape[along];
      const Tensor low = slice(values, dim, {0, n - 1}), high = slice(values, dim, {1, n});
      const Tensor holds = descending ? high <= low : low <= high;
      EXPECT_THAT(holds.span<std::uint8_t>(), ::testing::Each(1));
      const Tensor places = argsort(x, dim, descending);
      EXPECT_TRUE(std::equal(places.span<std::int64_t>().begin(), places.span<std::int64_t>().end(),
                             indices.span<std::int64_t>().begin()));
      check_gradients(
          {x}, [&] { return weigh(sort(x, dim, descending).values); }, 1e-5f, 5e-2);
    }
}

TEST(Sort, KeepsTheOrderOfEqualsAndPutsNanLast) {
  const Tensor x =
      Tensor::from<float>(std::array{2.0F, kQuietNan, -0.0F, kInfinity, 0.0F, 2.0F, kQuietNan, -kInfinity}, {8});
  EXPECT_THAT(argsort(x).span<std::int64_t>(), ElementsAre(7, 2, 4, 0, 5, 3, 1, 6));
  EXPECT_THAT(argsort(x, 0, true).span<std::int64_t>(), ElementsAre(1, 6, 3, 0, 5, 2, 4, 7));
  EXPECT_TRUE(std::signbit(sort(x).values.span<float>()[1]));
  for (const std::int64_t n : {100, 1000, 9000}) {  // each way of sorting
    const Tensor equals = Tensor::zeros({n});
    const Tensor places = argsort(equals, 0, true);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(places.span<std::int64_t>()[static_cast<std::size_t>(i)], i);
  }
  EXPECT_EQ(sort(Tensor::zeros({3, 0})).indices.shape(), (Shape{3, 0}));
  EXPECT_THAT(refusal([] { sort(Tensor::zeros({})); }), HasSubstr("sort: dimension -1 does not exist in shape ()"));
}

TEST(Sort, OfLongLinesIsTheStandardLibrarys) {
  for (const std::int64_t n : {127, 128, 4095, 4096, 30000})
    for (const bool descending : {false, true}) {
      const Tensor x = Tensor::empty({n});
      Philox random(7, static_cast<std::uint64_t>(n));
      for (float& value : x.span<float>()) value = std::round(random.normal() * 300) / 8;  // many are equal
      std::vector<std::int64_t> wanted(static_cast<std::size_t>(n));
      std::iota(wanted.begin(), wanted.end(), 0);
      const auto value_at = [&](std::int64_t i) { return x.span<float>()[static_cast<std::size_t>(i)]; };
      std::stable_sort(wanted.begin(), wanted.end(), [&](std::int64_t a, std::int64_t b) {
        return descending ? value_at(a) > value_at(b) : value_at(a) < value_at(b);
      });
      const Tensor places = argsort(x, 0, descending);
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), places.span<std::int64_t>().begin())) << n;
      const Tensor first = topk(x, n / 5, 0, descending).indices;
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.begin() + n / 5, first.span<std::int64_t>().begin())) << n;
    }
}

TEST(TopK, IsTheBeginOfTheSortedLine) {
  const Tensor x = spaced_leaf({4, 700, 3}, 3);
  for (const int dim : {0, 1, 2, -1})
    for (const bool largest : {false, true})
      for (const std::int64_t k : {0, 1, 2, 3}) {
        const auto [values, indices] = topk(x, k, dim, largest);
        const auto [all, places] = sort(x, dim, largest);
        const Tensor first = slice(all, dim, {0, k});
        ASSERT_EQ(values.shape(), first.shape());
        ASSERT_TRUE(std::equal(values.span<float>().begin(), values.span<float>().end(), first.span<float>().begin()));
      }
  check_gradients(
      {x}, [&] { return weigh(topk(x, 2, 1).values); }, 1e-5f, 5e-2);
  const Tensor row = spaced_leaf({50000}, 4);
  for (const std::int64_t k : {1, 300, 20000, 50000}) {
    const auto [values, indices] = topk(row, k);
    const auto [all, places] = sort(row, 0, true);
    ASSERT_TRUE(std::equal(indices.span<std::int64_t>().begin(), indices.span<std::int64_t>().end(),
                           places.span<std::int64_t>().begin()));
  }
  EXPECT_THAT(refusal([&] { topk(x, 5, 0); }),
              HasSubstr("topk: got k = 5 for dimension 0 of x (4, 700, 3), expected 0 to 4"));
}

}  // namespace
}  // namespace lockstep
