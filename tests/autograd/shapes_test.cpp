// Copies to other shapes: elements are compared with index arithmetic, gradients with finite differences.
#include "lockstep/autograd/shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Labels = std::vector<std::int64_t>;

// 0, 1, 2, ...
Tensor counted(const Shape& shape) {
  const Tensor x = Tensor::empty(shape);
  std::iota(x.data<float>(), x.data<float>() + x.count(), 0.f);
  return x;
}
Tensor labels(const Labels& values, const Shape& shape) {
  return Tensor::from<std::int64_t>(std::span<const std::int64_t>(values), shape);
}

TEST(Permute, MovesEveryElement) {
  const Shape shape = {3, 4, 5, 2};
  const Tensor x = counted(shape);
  std::vector<int> dims = {0, 1, 2, 3};
  do {
    const Tensor y = permute(x, dims);
    const auto extent = [&](int d) { return shape[static_cast<std::size_t>(dims[static_cast<std::size_t>(d)])]; };
    ASSERT_EQ(y.shape(), (Shape{extent(0), extent(1), extent(2), extent(3)}));
    std::array<std::int64_t, 4> at{};
    for (std::int64_t i = 0; i < y.count(); ++i) {
      std::int64_t rest = i;
      for (int d = 3; d >= 0; --d) {
        at[static_cast<std::size_t>(dims[static_cast<std::size_t>(d)])] = rest % extent(d);
        rest /= extent(d);
      }
      ASSERT_EQ(y.data<float>()[i], ((at[0] * 4 + at[1]) * 5 + at[2]) * 2 + at[3]);
    }
  } while (std::next_permutation(dims.begin(), dims.end()));
}

TEST(Permute, LargeTransposesAndOtherTypes) {
  const Tensor x = counted({67, 129});
  const Tensor y = transpose(x, 0, -1);
  for (std::int64_t r = 0; r < 129; ++r)
    for (std::int64_t c = 0; c < 67; ++c) ASSERT_EQ(y.data<float>()[r * 67 + c], c * 129 + r);
  const Tensor back = permute(cast(y, DType::kBFloat16), {1, 0}), rounded = cast(x, DType::kBFloat16);
  EXPECT_EQ(std::memcmp(back.buffer().data(), rounded.buffer().data(), back.bytes()), 0);
  EXPECT_THAT(permute(labels({1, 2, 3, 4, 5, 6}, {2, 3}), {1, 0}).span<std::int64_t>(), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_EQ(transpose(Tensor::zeros({0, 3}), 0, 1).shape(), (Shape{3, 0}));
}

TEST(Slice, IsPythons) {
  const Tensor x = counted({10});
  EXPECT_THAT(slice(x, 0, {2, 5}).span<float>(), ElementsAre(2, 3, 4));
  EXPECT_THAT(slice(x, 0, {-3}).span<float>(), ElementsAre(7, 8, 9));
  EXPECT_THAT(slice(x, 0, {1, -1, 3}).span<float>(), ElementsAre(1, 4, 7));
  EXPECT_THAT(slice(x, 0, {8, 100}).span<float>(), ElementsAre(8, 9));
  EXPECT_EQ(slice(x, 0, {5, 2}).shape(), (Shape{0}));
  EXPECT_EQ(slice(x, 0, {100}).count(), 0);
  const Tensor part = slice(counted({4, 5, 6}), {{1, 4, 2}, {}, {-2}});
  EXPECT_EQ(part.shape(), (Shape{2, 5, 2}));
  for (std::int64_t i = 0; i < part.count(); ++i)
    ASSERT_EQ(part.data<float>()[i], (1 + i / 10 * 2) * 30 + i / 2 % 5 * 6 + 4 + i % 2);
}

TEST(Concat, AlongAnyDimension) {
  const Tensor a = counted({2, 3}), b = counted({2, 1}), none = Tensor::zeros({2, 0});
  EXPECT_THAT(concat({a, b, none, a}, 1).span<float>(), ElementsAre(0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 1, 3, 4, 5));
  EXPECT_THAT(concat({labels({1, 2}, {2}), labels({3}, {1})}).span<std::int64_t>(), ElementsAre(1, 2, 3));
  const Tensor pile = stack({a, a}, -1);
  EXPECT_EQ(pile.shape(), (Shape{2, 3, 2}));
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(pile.data<float>()[i], i / 2);
}

TEST(Split, AndConcatGiveTheWhole) {
  const Tensor x = counted({3, 7, 2});
  for (const auto& parts :
       {split(x, std::vector<std::int64_t>{2, 0, 4, 1}, 1), split(x, 3, 1), split(x, 2, -1), split(x, 1, 0)}) {
    const int dim = parts.size() == 1 ? -1 : parts[0].shape()[0] == 1 ? 0 : 1;
    const Tensor whole = concat(parts, dim);
    ASSERT_EQ(whole.shape(), x.shape());
    for (std::int64_t i = 0; i < x.count(); ++i) ASSERT_EQ(whole.data<float>()[i], x.data<float>()[i]);
  }
  EXPECT_EQ(split(x, 3, 1).size(), 3u);
  EXPECT_EQ(split(x, 3, 1)[2].shape(), (Shape{3, 1, 2}));
  ASSERT_EQ(split(Tensor::zeros({3, 0}), 2, 1).size(), 1u) << "one part of nothing, as in PyTorch";
  EXPECT_EQ(split(Tensor::zeros({3, 0}), 2, 1)[0].shape(), (Shape{3, 0}));
}

TEST(Pad, PutsTheValueAround) {
  const Tensor y = pad(counted({2, 2}), {{1, 0}, {0, 2}}, -1);
  EXPECT_EQ(y.shape(), (Shape{3, 4}));
  EXPECT_THAT(y.span<float>(), ElementsAre(-1, -1, -1, -1, 0, 1, -1, -1, 2, 3, -1, -1));
  EXPECT_EQ(pad(Tensor::zeros({0, 2}), {{1, 1}, {0, 0}}, 3).span<float>()[3], 3);
}

TEST(BroadcastTo, Repeats) {
  const Tensor y = broadcast_to(counted({2, 1}), {3, 2, 4});
  for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(y.data<float>()[i], i / 4 % 2);
  EXPECT_THAT(refusal([] {
                broadcast_to(Tensor::zeros({2, 3}), {3});
              }),
              HasSubstr("broadcast_to: x (2, 3) cannot be repeated to fill (3)"));
}

TEST(Gather, TakesWhatTheIndexNames) {
  const Tensor x = counted({3, 4});
  EXPECT_THAT(gather(x, 1, labels({3, 0, 0, 1, 2, 2}, {3, 2})).span<float>(), ElementsAre(3, 0, 4, 5, 10, 10));
  EXPECT_THAT(gather(x, 0, labels({2, 0, 1}, {1, 3})).span<float>(), ElementsAre(8, 1, 6));
  EXPECT_EQ(gather(x, 0, labels({}, {0, 4})).count(), 0);
  EXPECT_THAT(refusal([&] {
                gather(x, 1, labels({0, 4}, {2, 1}));
              }),
              HasSubstr("gather: index 4 at position 1 is outside 0..3"));
  EXPECT_THAT(refusal([&] { gather(x, 1, Tensor::zeros({3, 1})); }), HasSubstr("gather: index must be int64"));
  EXPECT_THAT(refusal([&] {
                gather(x, 1, labels({0, 0, 0, 0}, {4, 1}));
              }),
              HasSubstr("gather: index (4, 1) is larger than x (3, 4)"));
}

TEST(Gradients, OfShapeOperators) {
  manual_seed(8);
  const Tensor x = random_leaf({3, 4, 5}), y = random_leaf({3, 2, 5}), row = random_leaf({4, 1});
  const Tensor index = labels({0, 3, 3, 1, 2, 0, 0, 0, 0, 1, 3, 3}, {2, 3, 2});
  const auto check = [](const std::vector<Tensor>& leaves, const std::function<Tensor()>& function) {
    check_gradients(
        leaves, [&] { return weigh(function()); }, 0.1f);
  };
  check({x}, [&] { return permute(x, {2, 0, 1}); });
  check({x}, [&] { return transpose(x, 0, 1); });
  check({x}, [&] { return slice(x, {{1}, {0, 4, 3}, {-4, -1, 2}}); });
  check({x, y}, [&] { return concat({x, y, x}, 1); });
  check({x}, [&] { return stack({x, x, x}, 2); });
  check({x}, [&] { return pad(x, {{0, 1}, {2, 0}, {1, 1}}, 3); });
  check({row}, [&] { return broadcast_to(row, {2, 4, 3}); });
  check({x}, [&] { return gather(x, 1, index); });
  check({x}, [&] { return squeeze(unsqueeze(x, -1), 3); });
  check({x}, [&] {
    const auto parts = split(x, std::vector<std::int64_t>{1, 3}, 1);
    return concat({parts[1], parts[0] * 2.f, parts[1]}, 1);
  });
  // Only one part of a split is used: the gradient of the rest is 0.
  clear_grad(x);
  sum(split(x, 2, 1)[1]).backward();
  for (std::int64_t i = 0; i < x.count(); ++i) ASSERT_EQ(grad(x).data<float>()[i], i / 5 % 4 >= 2 ? 1 : 0);
}

TEST(Gradients, OfShapeOperatorsInSixteenBits) {
  const Tensor leaf = counted({2, 3});
  require_grad(leaf);
  const Tensor x = cast(leaf, DType::kFloat16);
  const Tensor whole = concat({slice(x, 1, {1}), pad(x, {{0, 0}, {1, 0}})}, 1);
  EXPECT_EQ(whole.dtype(), DType::kFloat16);
  EXPECT_THAT(cast(whole, DType::kFloat32).span<float>(), ElementsAre(1, 2, 0, 0, 1, 2, 4, 5, 0, 3, 4, 5));
  sum(cast(whole, DType::kFloat32)).backward();
  EXPECT_THAT(grad(leaf).span<float>(), ElementsAre(1, 2, 2, 1, 2, 2));
}

TEST(Refusals, NameTheShapeOperator) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_THAT(refusal([&] { permute(x, {0}); }), HasSubstr("permute: got 1 dimensions for shape (2, 3)"));
  EXPECT_THAT(refusal([&] { permute(x, {0, 0}); }), HasSubstr("permute: dimension 0 of shape (2, 3) is given twice"));
  EXPECT_THAT(refusal([&] { slice(x, 0, {0, 1, 0}); }), HasSubstr("slice: got step 0"));
  EXPECT_THAT(refusal([&] { slice(x, {{}, {}, {}}); }), HasSubstr("slice: got 3 ranges"));
  EXPECT_THAT(refusal([&] { concat({x, Tensor::zeros({3, 3})}, 1); }), HasSubstr("concat: tensor 1 is float32 (3, 3)"));
  EXPECT_THAT(refusal([] { concat({}); }), HasSubstr("concat: got no tensors"));
  EXPECT_THAT(refusal([&] { split(x, std::vector<std::int64_t>{1, 1}, 1); }), HasSubstr("must add up to 3"));
  EXPECT_THAT(refusal([&] { pad(x, {{1, 1}}); }), HasSubstr("pad: got 1 pairs"));
  EXPECT_THAT(refusal([&] { pad(x, {{1, 1}, {-1, 0}}); }), HasSubstr("pad: got widths -1 and 0 for dimension 1"));
  EXPECT_THAT(refusal([&] { squeeze(x, 0); }), HasSubstr("squeeze: dimension 0"));
}

}  // namespace
}  // namespace lockstep
