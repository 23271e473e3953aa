// Members of Tensor are the functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::equal(a.span<float>().begin(), a.span<float>().end(), b.span<float>().begin());
}

TEST(Members, AreTheFunctions) {
  manual_seed(1);
  const Tensor x = rand({3, 4, 5});
  EXPECT_TRUE(same(x.sum(), sum(x)) && same(x.sum(1), sum(x, 1)) && same(x.sum({0, 2}, true), sum(x, {0, 2}, true)));
  EXPECT_TRUE(same(x.mean(), mean(x)) && same(x.mean(-1, true), mean(x, -1, true)));
  EXPECT_TRUE(same(x.max(), max(x)) && same(x.max(1).values, max(x, 1).values));
  EXPECT_TRUE(same(x.min(), min(x)) && same(x.min(1, true).values, min(x, 1, true).values));
  EXPECT_EQ(x.argmax().item<std::int64_t>(), argmax(x).item<std::int64_t>());
  EXPECT_EQ(x.argmax(0).shape(), (Shape{4, 5}));
  EXPECT_TRUE(same(x.transpose(0, 2), transpose(x, 0, 2)) && same(x.permute({2, 0, 1}), permute(x, {2, 0, 1})));
  EXPECT_TRUE(same(x.unsqueeze(1), unsqueeze(x, 1)) && same(x.unsqueeze(1).squeeze(1), x));
  EXPECT_TRUE(same(x.view({12, -1}), reshape(x, {12, 5})) && same(x.reshape({60}), reshape(x, {60})));
  EXPECT_TRUE(same(x.view(Shape{5, 12}), reshape(x, {5, 12})) && same(x.view({-1}), reshape(x, {60})));
  EXPECT_TRUE(same(x[1][2], reshape(slice(x, {{1, 2}, {2, 3}}), {5})));
  EXPECT_TRUE(same(x[-1], x[2]));
  EXPECT_TRUE(same(x[0].t(), transpose(x[0], 0, 1)));
  EXPECT_EQ(x.size(0), 3);
  EXPECT_EQ(x.size(-1), 5);
  EXPECT_EQ(x.dim(), 3);
  EXPECT_EQ(x.numel(), 60);
}

TEST(Members, AreDifferentiated) {
  manual_seed(2);
  const Tensor x = random_leaf({3, 4});
  check_gradients({x}, [&] { return weigh(x[1] * x[-1]) + x.t().view({-1}).sum() + (x.max() * x).mean(); });
  EXPECT_TRUE(same(x.grad(), grad(x)));
  EXPECT_FALSE(requires_grad(x.detach()));
  EXPECT_TRUE(same(x.detach(), x));
}

TEST(Members, ItemsOfIntegers) {
  EXPECT_EQ(Tensor::from<std::int64_t>(std::array<std::int64_t, 1>{1LL << 40}, {}).item<std::int64_t>(), 1LL << 40);
  EXPECT_EQ(Tensor::from<std::uint8_t>(std::array<std::uint8_t, 1>{200}, {1}).item<int>(), 200);
  EXPECT_EQ(Tensor::from<double>(std::array{0.1}, {}).item<double>(), 0.1);
  EXPECT_EQ(Tensor::full({}, 2.5F).item<float>(), 2.5F);
  EXPECT_THAT(refusal([] { (void)Tensor::full({}, 1).item<int>(); }), HasSubstr("int64"));
  EXPECT_THAT(refusal([] { (void)arange(1).view(Shape{}).item(); }), HasSubstr("float32"));
}

TEST(Members, RefuseWhatTheFunctionsRefuse) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_THAT(refusal([&] { x[2]; }), HasSubstr("operator[]: index 2 is outside x (2, 3), expected -2 to 1"));
  EXPECT_THAT(refusal([&] { (void)Tensor::zeros({})[0]; }), HasSubstr("operator[]: x is a scalar"));
  EXPECT_THAT(refusal([&] { x.view({4, -1}); }), HasSubstr("view: x (2, 3) has 6 elements"));
  EXPECT_THAT(refusal([&] { x[0].t(); }), HasSubstr("t: x (rows, columns)"));
  EXPECT_THAT(refusal([&] { Tensor().sum(); }), HasSubstr("sum: x is undefined"));
}

// x[0] = y would change a copy.
static_assert(!std::is_assignable_v<Tensor, const Tensor&> && std::is_assignable_v<Tensor&, const Tensor&>);

TEST(Members, ItemRefusesATypeThatCannotHoldTheValue) {
  const std::int64_t large[] = {std::int64_t{1} << 40}, minus_one[] = {-1};
  const Tensor x = Tensor::from<std::int64_t>(large, {}), y = Tensor::from<std::int64_t>(minus_one, {});
  EXPECT_EQ(x.item<std::int64_t>(), large[0]);
  EXPECT_EQ(y.item<int>(), -1);
  EXPECT_THAT(message_of([&] { x.item<int>(); }), HasSubstr("the value 1099511627776 does not fit the type"));
  EXPECT_THAT(message_of([&] { y.item<std::uint8_t>(); }),
              HasSubstr("the value -1 does not fit the type, which holds 0"));
}

}  // namespace
}  // namespace lockstep
