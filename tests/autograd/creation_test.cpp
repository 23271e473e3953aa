// Tensors with given contents.
#include "lockstep/autograd/creation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Creation, Ranges) {
  EXPECT_THAT(arange(4).span<std::int64_t>(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(arange(2, 5).span<std::int64_t>(), ElementsAre(2, 3, 4));
  EXPECT_THAT(arange(5, 0, -2).span<std::int64_t>(), ElementsAre(5, 3, 1));
  EXPECT_THAT(arange(0, 1, 0.25).span<float>(), ElementsAre(0, 0.25F, 0.5F, 0.75F));
  EXPECT_THAT(arange(1.5F).span<float>(), ElementsAre(0, 1));
  EXPECT_EQ(arange(3, 3).shape(), (Shape{0}));
  EXPECT_EQ(arange(3, 1).shape(), (Shape{0}));
  EXPECT_THAT(refusal([] { arange(0, 3, 0); }), HasSubstr("arange: got step 0"));
  EXPECT_THAT(linspace(-1, 1, 5).span<float>(), ElementsAre(-1, -0.5F, 0, 0.5F, 1));
  EXPECT_THAT(linspace(3, 9, 1).span<float>(), ElementsAre(3));
  EXPECT_EQ(linspace(0, 0.1, 7).span<float>()[6], 0.1F);
}

TEST(Creation, RandomNumbersFollowTheSeed) {
  manual_seed(3);
  const Tensor a = rand({100}), b = randn({100});
  manual_seed(3);
  const Tensor c = rand({100}), d = randn({100});
  EXPECT_TRUE(std::equal(a.span<float>().begin(), a.span<float>().end(), c.span<float>().begin()));
  EXPECT_TRUE(std::equal(b.span<float>().begin(), b.span<float>().end(), d.span<float>().begin()));
  EXPECT_GE(min(a).item(), 0);
  EXPECT_LT(max(a).item(), 1);
  EXPECT_LT(min(b).item(), -1);
}

TEST(Creation, LikeAnotherTensor) {
  const Tensor x = cast(Tensor::full({2, 3}, 5), DType::kBFloat16);
  for (const auto& [made, value] : {std::pair(full_like(x, 2), 2.0F), {ones_like(x), 1.0F}, {zeros_like(x), 0.0F}}) {
    EXPECT_EQ(made.dtype(), DType::kBFloat16);
    EXPECT_EQ(made.shape(), x.shape());
    EXPECT_THAT(cast(made, DType::kFloat32).span<float>(), ::testing::Each(value));
  }
  EXPECT_THAT(ones({2}).span<float>(), ElementsAre(1, 1));
}

TEST(Creation, Matrices) {
  EXPECT_THAT(eye(2).span<float>(), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(eye(2, 3).span<float>(), ElementsAre(1, 0, 0, 0, 1, 0));
  const Tensor x = ones({3, 3});
  EXPECT_THAT(tril(x).span<float>(), ElementsAre(1, 0, 0, 1, 1, 0, 1, 1, 1));
  EXPECT_THAT(tril(x, -1).span<float>(), ElementsAre(0, 0, 0, 1, 0, 0, 1, 1, 0));
  EXPECT_THAT(triu(x).span<float>(), ElementsAre(1, 1, 1, 0, 1, 1, 0, 0, 1));
  EXPECT_THAT(triu(x, 1).span<float>(), ElementsAre(0, 1, 1, 0, 0, 1, 0, 0, 0));
  manual_seed(4);
  const Tensor leaf = random_leaf({2, 3, 4});
  check_gradients({leaf}, [&] { return weigh(tril(leaf, 1)) + weigh(triu(leaf) * leaf); });
  EXPECT_THAT(refusal([] { tril(Tensor::zeros({3})); }), HasSubstr("tril: x (3) is no matrix"));
}

TEST(Creation, OneHotRows) {
  const Tensor labels = Tensor::from<std::int64_t>(std::array<std::int64_t, 2>{2, 0}, {2});
  const Tensor rows = one_hot(labels, 3);
  EXPECT_EQ(rows.shape(), (Shape{2, 3}));
  EXPECT_THAT(rows.span<float>(), ElementsAre(0, 0, 1, 1, 0, 0));
  EXPECT_EQ(one_hot(labels.reshaped({1, 2}), 4).shape(), (Shape{1, 2, 4}));
  EXPECT_THAT(refusal([&] { one_hot(labels, 2); }), HasSubstr("index 2 at position 0 is outside 0..1"));
}

}  // namespace
}  // namespace lockstep
