// Products on AMX: equal to those in double up to rounding, and exact where float products are. Operands and results
// end at pages that must not be accessed.
#include "kernels/cpu/products/product_amx.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lockstep/core/cpu_dispatch.h"
#include "src/core/process/compute_threads.h"
#include "tests/kernels/cpu/exact.h"
#include "tests/kernels/cpu/matrix_case.h"
#include "tests/kernels/guarded_memory.h"

namespace lockstep::testing {
namespace {

#define LOCKSTEP_SKIP_WITHOUT_AMX() \
  if (cpu_isa() < Isa::kAmx)        \
  GTEST_SKIP() << "needs a CPU with AMX, and a system that lends it (LOCKSTEP_ISA not lowered)"

std::vector<MatrixCase> amx_cases() {
  std::vector<MatrixCase> all;
  int flags = 0;
  for (const auto& [rows, columns, inner] : std::vector<std::array<Index, 3>>{{64, 64, 64},
                                                                              {32, 32, 32},
                                                                              {1, 1, 1},
                                                                              {17, 33, 31},
                                                                              {33, 17, 65},
                                                                              {100, 40, 257},
                                                                              {40, 100, 300},
                                                                              {1, 200, 513},
                                                                              {129, 1, 1025},
                                                                              {300, 70, 96},
                                                                              {70, 300, 1100},
                                                                              {16, 16, 2100},
                                                                              {31, 95, 64},
                                                                              {257, 256, 40},
                                                                              {64, 700, 33}})
    for (int transposed = 0; transposed < 4; ++transposed, ++flags)
      all.push_back({rows, columns, inner, (transposed & 1) != 0, (transposed & 2) != 0, flags % 3 == 0, flags % 3 == 1,
                     flags % 5 < 2});
  return all;
}

// The error is within that of summing in float: 2^-24 of the partial sum in each of some steps.
TEST(ProductAmx, IsTheProductUpToRounding) {
  LOCKSTEP_SKIP_WITHOUT_AMX();
  for (const MatrixCase& c : amx_cases()) {
    const Floats a = uniform(c.a_count(), 1), b = uniform(c.b_count(), 2), bias = uniform(c.columns, 3),
                 before = uniform(c.c_count(), 4);
    const GuardedFloats own_a(a), own_b(b), own_bias(bias), result(before);
    amx::multiply_alone(c.product(own_a.data(), own_b.data(), own_bias.data(), result.data()));
    const ExactProduct exact = exact_product(c, a, b, bias, before);
    for (Index i = 0; i < c.c_count(); ++i) {
      const Index row = i / c.c_step(), column = i % c.c_step(), at = row * c.columns + column;
      if (column < c.columns) {
        ASSERT_NEAR(double{result.data()[i]}, exact.values[at], 3e-7 * exact.magnitudes[at] + 1e-12)
            << c.name() << ": " << row << ", " << column;
      } else {
        ASSERT_EQ(result.data()[i], before[i]) << c.name() << ": after row " << row;
      }
    }
  }
}

TEST(ProductAmx, SumsOfWholeNumbersAreExact) {
  LOCKSTEP_SKIP_WITHOUT_AMX();
  for (const MatrixCase& c : amx_cases()) {
    const Floats a = whole_numbers(c.a_count(), 1), b = whole_numbers(c.b_count(), 2),
                 bias = whole_numbers(c.columns, 3);
    Floats result = whole_numbers(c.c_count(), 4), expected = result;
    const ExactProduct exact = exact_product(c, a, b, bias, result);
    for (Index row = 0; row < c.rows; ++row)
      std::copy_n(exact.values.begin() + row * c.columns, c.columns, expected.begin() + row * c.c_step());
    amx::multiply_alone(c.product(a.data(), b.data(), bias.data(), result.data()));
    expect_same_bits(result, expected, c.name());
  }
}

// The root mean square error, for sums of 64 to 2048 products, is not larger than that of sums in float, one product
// after the other.
TEST(ProductAmx, IsNotLessExactThanSumsInFloat) {
  LOCKSTEP_SKIP_WITHOUT_AMX();
  for (const Index inner : {64, 256, 1024, 2048}) {
    const MatrixCase c{64, 64, inner, false, false, false, false, false};
    const Floats a = uniform(c.a_count(), 1), b = uniform(c.b_count(), 2);
    Floats result(c.c_count());
    amx::multiply_alone(c.product(a.data(), b.data(), nullptr, result.data()));
    const ExactProduct exact = exact_product(c, a, b, {}, {});
    double own = 0, in_float = 0;
    for (Index row = 0; row < c.rows; ++row)
      for (Index column = 0; column < c.columns; ++column) {
        float sum = 0;
        for (Index k = 0; k < inner; ++k)
          sum = std::fma(element(c.a(a.data()), row, k), element(c.b(b.data()), k, column), sum);
        const double wanted = exact.values[row * c.columns + column];
        own += std::pow(result[row * c.c_step() + column] - wanted, 2), in_float += std::pow(sum - wanted, 2);
      }
    EXPECT_LE(own, in_float) << inner;
  }
}

// A float is the sum of its parts: the product with the identity preserves every bit.
TEST(ProductAmx, PartsHaveAllBitsOfAFloat) {
  LOCKSTEP_SKIP_WITHOUT_AMX();
  constexpr Index kSide = 64;
  Floats identity(kSide * kSide), values(kSide * kSide), result(kSide * kSide);
  for (Index i = 0; i < kSide; ++i) identity[i * kSide + i] = 1;
  for (Index i = 0; i < kSide * kSide; ++i) {
    const auto scattered = static_cast<std::uint32_t>(i) * 2654435761U;
    const std::uint32_t exponent = 30 + (scattered >> 16) % 220;
    values[i] = std::bit_cast<float>((scattered & 0x80000000U) | (exponent << 23) | ((scattered * 747796405U) >> 9));
  }
  const auto multiply = [&](const Floats& a, const Floats& b) {
    amx::multiply_alone({kSide, kSide, kSide, {a.data(), kSide, 1}, {b.data(), kSide, 1}, result.data(), kSide});
  };
  multiply(values, identity);
  expect_same_bits(result, values, "values by the identity");
  multiply(identity, values);
  expect_same_bits(result, values, "the identity by values");
}

// As the header states for small numbers: terms of 1e-30 are as precise as others.
TEST(ProductAmx, SmallTermsKeepTheirDigits) {
  LOCKSTEP_SKIP_WITHOUT_AMX();
  constexpr Index kSide = 64;
  Floats a = uniform(kSide * kSide, 1), b = uniform(kSide * kSide, 2), result(kSide * kSide);
  for (float& value : a) value = (value < 0 ? value - 1 : value + 1) * 1e-15F;
  for (float& value : b) value = (value < 0 ? value - 1 : value + 1) * 1e-15F;
  amx::multiply_alone({kSide, kSide, kSide, {a.data(), kSide, 1}, {b.data(), kSide, 1}, result.data(), kSide});
  for (Index i = 0; i < kSide * kSide; ++i) {
    double value = 0, magnitude = 0;
    for (Index k = 0; k < kSide; ++k) {
      const double product = double{a[i / kSide * kSide + k]} * b[k * kSide + i % kSide];
      value += product, magnitude += std::abs(product);
    }
    ASSERT_NEAR(double{result[i]}, value, 3e-7 * magnitude) << i;
  }
}

TEST(ProductAmxThreads, ChangeNoBit) {
  LOCKSTEP_SKIP_WITHOUT_AMX();
  set_compute_threads(3);
  if (compute_threads() != 3) GTEST_SKIP() << "OMP_NUM_THREADS is set";
  for (const auto& [rows, columns, inner] :
       std::vector<std::array<Index, 3>>{{300, 260, 700}, {140, 400, 1500}, {1000, 90, 300}})
    for (int transposed = 0; transposed < 4; ++transposed) {
      const MatrixCase c{rows, columns, inner, (transposed & 1) != 0, (transposed & 2) != 0, false, true, true};
      const Floats a = uniform(c.a_count(), 1), b = uniform(c.b_count(), 2), bias = uniform(columns, 3);
      Floats alone(c.c_count()), shared(c.c_count());
      amx::multiply_alone(c.product(a.data(), b.data(), bias.data(), alone.data()));
      for (const int threads : {1, 2, 3, 5}) {
        set_compute_threads(threads);
        std::fill(shared.begin(), shared.end(), 0.0F);
        amx::multiply(c.product(a.data(), b.data(), bias.data(), shared.data()));
        expect_same_bits(shared, alone, fmt::format("{}, {} threads", c.name(), threads));
      }
      set_compute_threads(0);
    }
}

// A value that is not finite shows in every result that depends on it, also through ReLU, and in no other.
TEST(ProductAmx, WhatIsNotFiniteStaysSo) {
  LOCKSTEP_SKIP_WITHOUT_AMX();
  for (const std::uint32_t bits : {0x7fc00000U, 0x7f800001U, 0x7fffffffU, 0xffffffffU, 0x7f800000U, 0xff800000U}) {
    Floats a = uniform(64 * 64, 1), result(64 * 64);
    const Floats b = uniform(64 * 64, 2);
    a[3 * 64 + 40] = std::bit_cast<float>(bits);
    amx::multiply_alone({64, 64, 64, {a.data(), 64, 1}, {b.data(), 64, 1}, result.data(), 64, false, nullptr, true});
    for (Index row = 0; row < 64; ++row)
      for (Index column = 0; column < 64; ++column)
        ASSERT_EQ(std::isnan(result[row * 64 + column]), row == 3) << row << ", " << column << ", bits " << bits;
  }
  // So do sums beyond a float's range.
  const Floats large(64 * 64, 1e30F);
  Floats result(64 * 64);
  amx::multiply_alone({64, 64, 64, {large.data(), 64, 1}, {large.data(), 64, 1}, result.data(), 64});
  EXPECT_FALSE(std::isfinite(result[0]));
}

// Layers and products of the device use it, bit for bit, except for small products.
TEST(ProductAmx, ServesTheDevice) {
  EXPECT_FALSE(amx::suits(63, 4096, 4096));
  EXPECT_FALSE(amx::suits(64, 64, 64));
  EXPECT_EQ(amx::suits(128, 128, 64), cpu_isa() >= Isa::kAmx);
  LOCKSTEP_SKIP_WITHOUT_AMX();
  constexpr Index kBatch = 130, kIn = 200, kOut = 97;
  const Floats x = uniform(kBatch * kIn, 1), weight = uniform(kOut * kIn, 2), bias = uniform(kOut, 3),
               grad = uniform(kBatch * kOut, 4);
  Floats y(kBatch * kOut), x_grad = uniform(kBatch * kIn, 5), weight_grad = uniform(kOut * kIn, 6),
                           product(kBatch * kOut);
  Floats own_y = y, own_x_grad = x_grad, own_weight_grad = weight_grad, own_product = product;
  const KernelTable& kernels = tested();
  kernels.linear(in(x, {kBatch, kIn}), in(weight, {kOut, kIn}), in(bias), true, out(y, {kBatch, kOut}), stream());
  kernels.linear_backward_data(in(grad, {kBatch, kOut}), in(weight, {kOut, kIn}), out(x_grad, {kBatch, kIn}, true),
                               stream());
  kernels.linear_backward_weights(in(x, {kBatch, kIn}), in(grad, {kBatch, kOut}), out(weight_grad, {kOut, kIn}, true),
                                  {}, stream());
  kernels.matmul(in(x, {1, kBatch, kIn}), false, in(weight, {1, kOut, kIn}), true, out(product, {1, kBatch, kOut}),
                 stream());
  const MatrixOperand rows_of_x{x.data(), kIn, 1}, rows_of_weight{weight.data(), kIn, 1},
      columns_of_weight{weight.data(), 1, kIn};
  amx::multiply({kBatch, kOut, kIn, rows_of_x, columns_of_weight, own_y.data(), kOut, false, bias.data(), true});
  amx::multiply({kBatch, kIn, kOut, {grad.data(), kOut, 1}, rows_of_weight, own_x_grad.data(), kIn, true});
  amx::multiply({kOut, kIn, kBatch, {grad.data(), 1, kOut}, rows_of_x, own_weight_grad.data(), kIn, true});
  amx::multiply({kBatch, kOut, kIn, rows_of_x, columns_of_weight, own_product.data(), kOut});
  expect_same_bits(y, own_y, "linear"), expect_same_bits(product, own_product, "matmul");
  expect_same_bits(x_grad, own_x_grad, "backward, data"),
      expect_same_bits(weight_grad, own_weight_grad, "backward, weights");
}

}  // namespace
}  // namespace lockstep::testing
