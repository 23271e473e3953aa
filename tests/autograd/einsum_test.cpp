// Einstein's summation: values are compared with loops over all letters, gradients with finite differences.
#include "lockstep/autograd/einsum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t extent_of(char letter) { return letter - 'a' + 2; }

Shape shape_of(const std::string& letters) {
  std::vector<std::int64_t> extents;
  for (const char letter : letters) extents.push_back(extent_of(letter));
  return Shape(std::span<const std::int64_t>(extents));
}

std::int64_t offset(const std::string& letters, const std::map<char, std::int64_t>& at) {
  std::int64_t place = 0;
  for (const char letter : letters) place = place * extent_of(letter) + at.at(letter);
  return place;
}

// Adds up the product for every value of every letter.
std::vector<double> expected(const std::string& a_letters, const std::string& b_letters, const std::string& result,
                             const Tensor& a, const Tensor& b) {
  std::vector<double> sums(static_cast<std::size_t>(shape_of(result).count()));
  std::map<char, std::int64_t> at;
  for (const char letter : a_letters + b_letters) at[letter] = 0;
  while (true) {
    const double left = double{a.data<float>()[offset(a_letters, at)]},
                 right = b.defined() ? double{b.data<float>()[offset(b_letters, at)]} : 1;
    sums[static_cast<std::size_t>(offset(result, at))] += left * right;
    auto digit = at.begin();
    while (digit != at.end() && ++digit->second == extent_of(digit->first)) (digit++)->second = 0;
    if (digit == at.end()) return sums;
  }
}

void check_pattern(const std::string& a_letters, const std::string& b_letters, const std::string& result) {
  const std::string pattern = a_letters + (b_letters.empty() ? "" : "," + b_letters) + "->" + result;
  SCOPED_TRACE(pattern);
  manual_seed(1);
  const Tensor a = random_leaf(shape_of(a_letters)),
               b = b_letters.empty() ? Tensor() : random_leaf(shape_of(b_letters));
  const auto compute = [&] { return b.defined() ? einsum(pattern, a, b) : einsum(pattern, a); };
  const Tensor y = compute();
  ASSERT_EQ(y.shape(), shape_of(result));
  const std::vector<double> wanted = expected(a_letters, b_letters, result, a, b);
  for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(y.span<float>()[i], wanted[i], 1e-5);
  check_gradients(b.defined() ? std::vector{a, b} : std::vector{a}, [&] { return weigh(compute()); });
}

TEST(Einsum, OfOneOperand) {
  for (const auto& [letters, result] :
       {std::pair("abc", "cab"), {"abc", "abc"}, {"abc", "ca"}, {"ab", ""}, {"abc", "b"}})
    check_pattern(letters, "", result);
}

TEST(Einsum, OfTwoOperands) {
  const struct {
    const char *a, *b, *result;
  } patterns[] = {{"ab", "bc", "ac"},       {"ab", "bc", "ca"}, {"abc", "acd", "abd"}, {"ab", "ab", ""},
                  {"ab", "ab", "ab"},       {"a", "b", "ab"},   {"ab", "b", "a"},      {"abc", "dc", "abd"},
                  {"abcd", "aecd", "acbe"}, {"abc", "cb", "a"}, {"ab", "cd", "dbca"},  {"abc", "abd", "cd"},
                  {"abc", "bd", "ad"},      {"ba", "cb", "b"}};
  for (const auto& [a, b, result] : patterns) check_pattern(a, b, result);
}

// The products overflow in 16 bits, and their sum does not.
TEST(Einsum, HalvesAreSummedBeforeTheyAreRounded) {
  const Tensor sign = arange(2.0) * -2.0F + 1.0F;  // 1, -1
  const Tensor a = cast(Tensor::full({2}, 300), DType::kFloat16), b = cast(sign * 300.0F, DType::kFloat16);
  EXPECT_EQ(cast(einsum("i,i->", a, b), DType::kFloat32).item(), 0);
}

TEST(Einsum, WithoutAnArrowKeepsTheLettersThatOccurOnce) {
  const Tensor a = rand({2, 3}), b = rand({3, 4});
  EXPECT_EQ(einsum("zb,ba", a, b).shape(), (Shape{4, 2}));
  EXPECT_EQ(einsum("ba", a).shape(), (Shape{3, 2}));
  EXPECT_EQ(einsum(" i j , j k -> i k ", a, b).shape(), (Shape{2, 4}));
}

TEST(Einsum, RefusalsNameThePattern) {
  const Tensor a = rand({2, 3}), b = rand({3, 4});
  EXPECT_THAT(refusal([&] { einsum("ii->i", a); }), HasSubstr("einsum: 'ii->i' has 'i' twice in 'ii': a diagonal"));
  EXPECT_THAT(refusal([&] { einsum("ij,jk->ik", a, a); }), HasSubstr("needs equal extents for 'j', got 3 and 2"));
  EXPECT_THAT(refusal([&] { einsum("ij,jk->il", a, b); }), HasSubstr("has 'l' in the result and in no operand"));
  EXPECT_THAT(refusal([&] { einsum("...j,jk->...k", a, b); }), HasSubstr("has '.', expected letters"));
  EXPECT_THAT(refusal([&] { einsum("ij->ij", a, b); }), HasSubstr("has 1 operands, but 2 were given"));
  EXPECT_THAT(refusal([&] { einsum("ijk,jk->i", a, b); }), HasSubstr("has 3 letters for operand 0, which is (2, 3)"));
}

}  // namespace
}  // namespace lockstep
