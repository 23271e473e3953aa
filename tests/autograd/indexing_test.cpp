// Elements at computed places, and repeated or turned tensors: values are compared with index arithmetic, gradients
// with finite differences.
#include "lockstep/autograd/indexing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <std::size_t n> Tensor indices(const std::array<std::int64_t, n>& values, const Shape& shape) {
  return Tensor::from<std::int64_t>(values, shape);
}

Tensor counted(const Shape& shape) { return arange(0.0, static_cast<double>(shape.count()), 1).view(shape); }

TEST(Scatter, ReplacesOrAdds) {
  const Tensor x = Tensor::full({2, 3}, 9), source = counted({2, 3}) + 1.F;
  const Tensor index = indices<4>({2, 0, 1, 1}, {2, 2});
  EXPECT_THAT(scatter(x, 1, index, source).span<float>(), ElementsAre(2, 9, 1, 9, 5, 9));  // 5 is the last of two
  EXPECT_THAT(scatter(x, 1, index, 7).span<float>(), ElementsAre(7, 9, 7, 9, 7, 9));
  EXPECT_THAT(scatter_add(x, 1, index, source).span<float>(), ElementsAre(11, 9, 10, 9, 18, 9));
  EXPECT_THAT(x.span<float>(), ::testing::Each(9.0F));
  EXPECT_THAT(refusal([&] {
                scatter(x, 1, indices<1>({3}, {1, 1}), source);
              }),
              HasSubstr("scatter: index 3 at position 0 is outside 0..2"));
  EXPECT_THAT(refusal([&] {
                scatter_add(x, 1, index, Tensor::zeros({1, 3}));
              }),
              HasSubstr("scatter_add: index (2, 2) is larger than source (1, 3) in dimension 0"));
}

TEST(Scatter, AgreesWithFiniteDifferences) {
  manual_seed(1);
  const Tensor x = random_leaf({3, 5}), source = random_leaf({3, 4});
  const Tensor distinct = indices<6>({4, 0, 1, 3, 2, 0}, {3, 2}), repeated = indices<6>({4, 4, 1, 3, 0, 0}, {3, 2});
  check_gradients({x, source}, [&] { return weigh(scatter(x, 1, distinct, source)) + weigh(x); });
  check_gradients({x}, [&] { return weigh(scatter(x, -1, repeated, 2)); });
  check_gradients({x, source}, [&] { return weigh(scatter_add(x, 1, repeated, source) * x); });
}

TEST(IndexSelect, TakesSlices) {
  manual_seed(2);
  const Tensor x = random_leaf({3, 4, 5}), index = indices<3>({2, 0, 2}, {3});
  for (const int dim : {0, 1, -1}) {
    const Tensor y = index_select(x, dim, index);
    const Tensor first = slice(x, dim, {2, 3}), second = slice(x, dim, {0, 1});
    const Tensor wanted = concat({first, second, first}, dim);
    ASSERT_EQ(y.shape(), wanted.shape());
    EXPECT_TRUE(std::equal(y.span<float>().begin(), y.span<float>().end(), wanted.span<float>().begin()));
    check_gradients({x}, [&] { return weigh(index_select(x, dim, index)); });
  }
  EXPECT_THAT(refusal([&] { index_select(x, 0, indices<1>({-1}, {1})); }), HasSubstr("index -1 at position 0"));
}

TEST(MaskedFill, ReplacesWhereTheMaskIsSet) {
  manual_seed(3);
  const Tensor x = random_leaf({3, 4});
  const Tensor mask = x > 0, y = masked_fill(x, mask, -5);
  for (std::size_t i = 0; i < 12; ++i) {
    const float value = x.span<float>()[i];
    ASSERT_EQ(y.span<float>()[i], value > 0 ? -5 : value);
  }
  check_gradients({x}, [&] { return weigh(masked_fill(x, mask, -5) * x); });
}

TEST(Turned, FlipAndRoll) {
  const Tensor x = counted({2, 3});
  EXPECT_THAT(flip(x, {1}).span<float>(), ElementsAre(2, 1, 0, 5, 4, 3));
  EXPECT_THAT(flip(x, {0, -1}).span<float>(), ElementsAre(5, 4, 3, 2, 1, 0));
  EXPECT_THAT(flip(arange(3), {0}).span<std::int64_t>(), ElementsAre(2, 1, 0));
  EXPECT_THAT(roll(x, 1, 1).span<float>(), ElementsAre(2, 0, 1, 5, 3, 4));
  EXPECT_THAT(roll(x, -1, 0).span<float>(), ElementsAre(3, 4, 5, 0, 1, 2));
  EXPECT_THAT(roll(x, 3, 1).span<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(flip(Tensor::zeros({0, 2}), {0}).shape(), (Shape{0, 2}));
  manual_seed(4);
  const Tensor leaf = random_leaf({3, 4, 5});
  check_gradients({leaf}, [&] { return weigh(flip(leaf, {0, 2})) + weigh(leaf); });
  for (const int dim : {0, 1, 2}) check_gradients({leaf}, [&] { return weigh(roll(leaf, 7, dim)) + weigh(leaf); });
  EXPECT_THAT(refusal([&] { flip(leaf, {1, 1}); }), HasSubstr("flip: dimension 1 of shape (3, 4, 5) is given twice"));
}

TEST(Repeated, WholesAndSlices) {
  const Tensor x = counted({2, 2});
  EXPECT_THAT(repeat(x, {1, 2}).span<float>(), ElementsAre(0, 1, 0, 1, 2, 3, 2, 3));
  EXPECT_THAT(repeat(x, {2, 1}).span<float>(), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_EQ(repeat(x, {3, 2, 2}).shape(), (Shape{3, 4, 4}));
  EXPECT_THAT(tile(x, {2}).span<float>(), ElementsAre(0, 1, 0, 1, 2, 3, 2, 3));
  EXPECT_EQ(repeat(x, {0, 1}).shape(), (Shape{0, 2}));
  EXPECT_THAT(repeat_interleave(x, 2, 0).span<float>(), ElementsAre(0, 1, 0, 1, 2, 3, 2, 3));
  EXPECT_THAT(repeat_interleave(x, 2, 1).span<float>(), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  manual_seed(5);
  const Tensor leaf = random_leaf({3, 4});
  check_gradients({leaf}, [&] { return weigh(repeat(leaf, {2, 3, 2})); });
  check_gradients({leaf}, [&] { return weigh(repeat_interleave(leaf, 3, -1)); });
  EXPECT_THAT(refusal([&] { repeat(leaf, {2}); }), HasSubstr("repeat: got 1 numbers for x (3, 4)"));
}

TEST(Chunks, AreOfEqualSize) {
  const std::vector<Tensor> parts = chunk(counted({7, 2}), 3);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].shape(), (Shape{3, 2}));
  EXPECT_EQ(parts[2].shape(), (Shape{1, 2}));
  EXPECT_EQ(chunk(counted({4}), 3).size(), 2U);  // as in PyTorch: parts of 2
  EXPECT_THAT(refusal([] { chunk(Tensor::zeros({3}), 0); }), HasSubstr("chunk: got 0 chunks"));
}

}  // namespace
}  // namespace lockstep
