// Holds every product path to the bounds that docs/operators.md states: the error against float64, root mean square and
// largest, relative to the root mean square of the results. Operands are uniform in -1 .. 1.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/cases/shapes.h"
#include "kernels/cpu/conv/patch_products.h"
#include "kernels/cpu/conv/winograd/winograd.h"
#include "kernels/cpu/conv/winograd/winograd_narrow.h"
#include "kernels/cpu/products/packed_product.h"
#include "kernels/cpu/products/product_amx.h"
#include "kernels/cpu/products/vector_product.h"
#include "tests/kernels/cpu/exact.h"
#include "tests/kernels/cpu/float64.h"
#include "tests/kernels/cpu/matrix_case.h"
#include "tests/kernels/guarded_memory.h"
#include "tests/kernels/isa_names.h"
#include "tests/support/page.h"
#include "tests/support/pattern.h"
#if LOCKSTEP_WITH_ONEDNN
#include "kernels/onednn/onednn_kernels.h"
#endif

namespace lockstep::testing {
namespace {

struct RoundingErrors {
  double root_mean_square = 0, largest = 0;

  // Keeps the larger ones of several measurements.
  void add(const Floats& results, const Doubles& exact) {
    ASSERT_EQ(results.size(), exact.size());
    double squares = 0, errors = 0, worst = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double error = std::abs(results[i] - exact[i]);
      squares += exact[i] * exact[i], errors += error * error, worst = std::max(worst, error);
    }
    ASSERT_GT(squares, 0);
    ASSERT_TRUE(std::isfinite(errors)) << "a result is NaN or infinite";
    const double scale = std::sqrt(squares / static_cast<double>(exact.size()));
    root_mean_square = std::max(root_mean_square, std::sqrt(errors / static_cast<double>(exact.size())) / scale);
    largest = std::max(largest, worst / scale);
  }
};

// The row of the page's table that begins with the path's name, or else with its name and the instruction set.
void expect_within_page(const std::string& path, const RoundingErrors& measured) {
  static const std::string kPage = text_of_file(LOCKSTEP_SOURCE_ROOT "/docs/operators.md");
  const std::string number = R"( *\| ([0-9.e-]+) \| ([0-9.e-]+) \|)";
  std::printf("%s, %s: %.2g, largest %.2g\n", path.c_str(), isa_name(cpu_isa()), measured.root_mean_square,
              measured.largest);
  auto row = find_match(kPage, "\n\\| " + path + number);
  if (row.empty()) row = find_match(kPage, "\n\\| " + path + ", " + isa_name(cpu_isa()) + number);
  ASSERT_FALSE(row.empty()) << "docs/operators.md has no row for " << path << " with " << isa_name(cpu_isa());
  EXPECT_LE(measured.root_mean_square, std::strtod(row[1].c_str(), nullptr)) << path;
  EXPECT_LE(measured.largest, std::strtod(row[2].c_str(), nullptr)) << path;
  // Rounding the results alone costs more than this.
  EXPECT_GT(measured.root_mean_square, 1e-8) << path << ": too exact to be computed in float32";
}

// Measures sums of 64 to 4096 products. Operands of 16 bits are rounded before both.
template <typename Multiply>
void measure_products(const std::string& path, bool transpose_b, const Multiply& work, DType type = DType::kFloat32) {
  RoundingErrors errors;
  for (const Index inner : {64, 1000, 4096}) {
    const MatrixCase c{96, 80, inner, false, transpose_b, false, false, false};
    Floats a = uniform(c.a_count(), 1), b = uniform(c.b_count(), 2);
    Floats result(c.c_count()), without_gaps;
    Product product = c.product(a.data(), b.data(), nullptr, result.data());
    const GuardedHalves half_a(DType::kBFloat16, a), half_b(DType::kBFloat16, b);
    if (type == DType::kBFloat16) {
      widen(type, half_a.data(), a.data(), c.a_count()), widen(type, half_b.data(), b.data(), c.b_count());
      product.a.data = half_a.data(), product.b.data = half_b.data(), product.a.type = product.b.type = type;
    }
    work(product);
    for (Index row = 0; row < c.rows; ++row)
      without_gaps.insert(without_gaps.end(), result.begin() + row * c.c_step(),
                          result.begin() + row * c.c_step() + c.columns);
    errors.add(without_gaps, exact_product(c, a, b, {}, {}).values);
  }
  expect_within_page(path, errors);
}

TEST(RoundingErrors, OfPackedProducts) {
  measure_products("packed product", false, [](const Product& p) { packed_product::multiply_alone(p, false); });
  measure_products("packed product, turned", true, [](const Product& p) { packed_product::multiply_alone(p, true); });
}

TEST(RoundingErrors, OfProductsOfFewRows) {
  const auto four_at_a_time = [](Product p) {
    for (Index rows = std::exchange(p.rows, 4); rows > 0; rows -= 4, p.a = p.a.from(4, 0), p.c += 4 * p.c_step)
      vector_product::multiply_alone(p);
  };
  measure_products("product of few rows", false, four_at_a_time);
  measure_products("product of few rows, transposed", true, four_at_a_time);
}

TEST(RoundingErrors, OfOneDnnsProducts) {
#if LOCKSTEP_WITH_ONEDNN
  tested();  // the first table limits oneDNN's instruction set
  measure_products("oneDNN's product", false, [](const Product& p) { onednn::multiply_alone(p); });
#else
  GTEST_SKIP() << "this build has no oneDNN";
#endif
}

TEST(RoundingErrors, OfOneDnnsBFloat16Products) {
#if LOCKSTEP_WITH_ONEDNN
  tested();
  if (!onednn::multiplies_bfloat16()) GTEST_SKIP() << "this CPU does not multiply bfloat16, or LOCKSTEP_ISA is lower";
  for (const bool transpose_b : {false, true})
    measure_products(
        "oneDNN's bfloat16 product", transpose_b, [](const Product& p) { onednn::multiply_bfloat16_alone(p); },
        DType::kBFloat16);
#else
  GTEST_SKIP() << "this build has no oneDNN";
#endif
}

TEST(RoundingErrors, OfAmxProducts) {
  if (cpu_isa() < Isa::kAmx) GTEST_SKIP() << "needs a CPU with AMX (LOCKSTEP_ISA not lowered)";
  measure_products("AMX product", false, [](const Product& p) { amx::multiply_alone(p); });
}

using Forward = void (*)(const Conv2dShape&, const float*, const float*, const float*, bool, float*);
using BackwardData = void (*)(const Conv2dShape&, const float*, const float*, float*, bool);
using BackwardWeights = void (*)(const Conv2dShape&, const float*, const float*, float*, bool);

// One row for the forward pass and the gradients of the inputs, which sum over channels, and one for the gradients of
// the weights, which sum over pixels.
void measure_convolutions(const std::string& path, const std::vector<Conv2dShape>& shapes, Forward forward,
                          BackwardData data, BackwardWeights weights) {
  RoundingErrors of_pixels, of_weights;
  for (const Conv2dShape& s : shapes) {
    const Floats x = uniform(x_shape(s).count(), 1), weight = uniform(weight_shape(s).count(), 2),
                 y_grad = uniform(y_shape(s).count(), 3);
    const ConvolutionIn64 exact(s, x, weight, y_grad);
    Floats y(y_grad.size()), x_grad(x.size()), weight_grad(weight.size());
    forward(s, x.data(), weight.data(), nullptr, false, y.data());
    of_pixels.add(y, exact.y);
    if (data != nullptr)
      data(s, y_grad.data(), weight.data(), x_grad.data(), false), of_pixels.add(x_grad, exact.x_grad);
    weights(s, x.data(), y_grad.data(), weight_grad.data(), false);
    of_weights.add(weight_grad, exact.weight_grad);
  }
  expect_within_page(path, of_pixels);
  expect_within_page(path + ", weights", of_weights);
}

TEST(RoundingErrors, OfWinograd) {
  for (const Index kernel : {3, 5}) {
    const Index pad = kernel / 2;
    const std::vector<Conv2dShape> shapes = {
        conv2d_shape(2, 12, 12, 16, 32, kernel, kernel, 1, 1, {pad, pad, pad, pad}),
        conv2d_shape(1, 8, 8, 96, 32, kernel, kernel, 1, 1, {pad, pad, pad, pad})};
    for (const Conv2dShape& s : shapes) ASSERT_TRUE(winograd::suits(s)) << name_of(s);
    measure_convolutions(fmt::format("Winograd {0}x{0}", kernel), shapes, winograd::conv2d,
                         winograd::conv2d_backward_data, winograd::conv2d_backward_weights);
  }
}

TEST(RoundingErrors, OfWinogradWithFewChannels) {
  const std::vector<Conv2dShape> shapes = {conv2d_shape(2, 12, 12, 3, 64, 5, 5, 1, 1, {2, 2, 2, 2})};
  ASSERT_TRUE(winograd_narrow::suits(shapes[0]));
  measure_convolutions("Winograd 5x5, up to 4 channels", shapes, winograd_narrow::conv2d, nullptr,
                       [](const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad, bool) {
                         winograd_narrow::conv2d_backward_weights(s, x, y_grad, {weight_grad, weight_shape(s)}, {});
                       });
}

TEST(RoundingErrors, OfPatchProducts) {
  measure_convolutions("patch products",
                       {conv2d_shape(2, 12, 12, 16, 32, 3, 3, 1, 1, {1, 1, 1, 1}),
                        conv2d_shape(3, 9, 8, 40, 17, 5, 3, 2, 1, {2, 1, 2, 1}),
                        conv2d_shape(2, 20, 20, 64, 32, 1, 1, 1, 1, {0, 0, 0, 0})},
                       patch_products::conv2d, patch_products::conv2d_backward_data,
                       patch_products::conv2d_backward_weights);
}

TEST(RoundingErrors, OfOneDnnsConvolutions) {
#if LOCKSTEP_WITH_ONEDNN
  tested();  // the first table limits oneDNN's instruction set
  measure_convolutions(
      "oneDNN's convolution",
      {conv2d_shape(2, 12, 12, 16, 32, 3, 3, 1, 1, {1, 1, 1, 1}),
       conv2d_shape(3, 9, 8, 40, 17, 5, 3, 2, 1, {2, 1, 2, 1}),
       conv2d_shape(2, 20, 20, 64, 32, 1, 1, 1, 1, {0, 0, 0, 0})},
      [](const Conv2dShape& s, const float* x, const float* weight, const float*, bool, float* y) {
        onednn::conv2d(s, {x, x_shape(s)}, {weight, weight_shape(s)}, {}, false, {y, y_shape(s)});
      },
      [](const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad, bool) {
        onednn::conv2d_backward_data(s, {y_grad, y_shape(s)}, {weight, weight_shape(s)}, {x_grad, x_shape(s)});
      },
      [](const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad, bool) {
        onednn::conv2d_backward_weights(s, {x, x_shape(s)}, {y_grad, y_shape(s)}, {weight_grad, weight_shape(s)}, {});
      });
#else
  GTEST_SKIP() << "this build has no oneDNN";
#endif
}

TEST(RoundingErrors, OfAttention) {
  RoundingErrors forward, backward;
  for (const auto& [count, width] : std::vector<std::array<Index, 2>>{{33, 16}, {250, 64}, {100, 128}})
    for (const bool causal : {false, true}) {
      const Shape shape = {1, count, 1, width}, sums = {1, 1, count};
      const float scale = 1 / std::sqrt(static_cast<float>(width));
      const Index all = count * width;
      const Floats q = uniform(all, 1), k = uniform(all, 2), v = uniform(all, 3), y_grad = uniform(all, 4);
      Floats y(q.size()), log_sums(static_cast<std::size_t>(count)), q_grad(y), k_grad(y), v_grad(y);
      tested().attention({scale, causal}, in(q, shape), in(k, shape), in(v, shape), out(y, shape), out(log_sums, sums),
                         stream());
      tested().attention_backward({scale, causal}, in(q, shape), in(k, shape), in(v, shape), in(y, shape),
                                  in(log_sums, sums), in(y_grad, shape), out(q_grad, shape), out(k_grad, shape),
                                  out(v_grad, shape), stream());
      const AttentionIn64 exact(count, width, scale, causal, q, k, v, y_grad);
      forward.add(y, exact.y);
      backward.add(q_grad, exact.q_grad), backward.add(k_grad, exact.k_grad), backward.add(v_grad, exact.v_grad);
    }
  expect_within_page("attention", forward);
  expect_within_page("attention, gradients", backward);
}

}  // namespace
}  // namespace lockstep::testing
