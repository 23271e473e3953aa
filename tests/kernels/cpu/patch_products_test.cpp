// Convolutions as products of patches, on random shapes: strides, uneven padding, groups, windows larger than the
// image, several blocks of images or of pixels. Sums of whole numbers are exact, so results equal the plain kernels'.
// Arrays end at pages without access.
#include "kernels/cpu/conv/patch_products.h"

#include <fmt/format.h>

#include <random>

#include "kernels/cases/shapes.h"
#include "src/core/process/compute_threads.h"
#include "tests/kernels/cpu/exact.h"
#include "tests/kernels/guarded_memory.h"

namespace lockstep::testing {
namespace {

// Every window overlaps the image or its padding; the image may be smaller than the window.
Conv2dShape random_conv2d(std::mt19937& random) {
  const auto between = [&](Index least, Index most) {
    return least + static_cast<Index>(random() % static_cast<unsigned>(most - least + 1));
  };
  const bool is_plain = random() % 5 == 0, is_large = random() % 4 == 0;
  const Index groups = random() % 3 == 0 ? between(2, 5) : 1;
  const Index kernel_height = is_plain ? 1 : between(1, 5), kernel_width = is_plain ? 1 : between(1, 5);
  std::array<Index, 4> pads{};
  for (std::size_t i = 0; i < 4 && !is_plain; ++i) pads[i] = between(0, i % 2 == 0 ? kernel_height : kernel_width);
  const auto size = [&](Index kernel, Index pad) {
    return std::max(is_large ? between(17, 26) : between(1, 7), std::max<Index>(1, kernel - pad));
  };
  const Index height = size(kernel_height, pads[0] + pads[2]), width = size(kernel_width, pads[1] + pads[3]);
  const Index batch = is_large ? between(1, 2) : between(1, 40);
  const Index stride = is_plain && random() % 2 == 0 ? 1 : 0;
  return in_groups(groups, conv2d_shape(batch, height, width, groups * between(1, 9), groups * between(1, 20),
                                        kernel_height, kernel_width, stride + (stride == 0 ? between(1, 3) : 0),
                                        stride + (stride == 0 ? between(1, 3) : 0), pads));
}

std::vector<Conv2dShape> patch_shapes() {
  std::mt19937 random(3);
  std::vector<Conv2dShape> shapes = {conv2d_shape(1, 1, 1, 1, 1, 1, 1, 1, 1, {0, 0, 0, 0}),
                                     conv2d_shape(2, 3, 2, 3, 17, 5, 4, 1, 1, {2, 3, 2, 1}),
                                     conv2d_shape(1, 25, 31, 3, 7, 1, 1, 1, 1, {0, 0, 0, 0}),
                                     conv2d_shape(1, 25, 31, 3, 7, 3, 3, 1, 1, {2, 0, 0, 1}),
                                     conv2d_shape(70, 4, 4, 5, 6, 3, 3, 1, 1, {1, 1, 1, 1}),
                                     conv2d_shape(100, 1, 1, 5, 6, 1, 1, 1, 1, {0, 0, 0, 0}),
                                     in_groups(3, conv2d_shape(20, 5, 5, 6, 9, 1, 1, 1, 1, {0, 0, 0, 0}))};
  while (shapes.size() < 120) shapes.push_back(random_conv2d(random));
  return shapes;
}

TEST(PatchProducts, ForwardIsThePlainKernels) {
  for (const Conv2dShape& s : patch_shapes())
    for (const bool flag : {false, true}) {
      const Floats x = whole_numbers(x_shape(s).count(), 1), weight = whole_numbers(weight_shape(s).count(), 2),
                   bias = whole_numbers(s.out_channels, 3);
      Floats expected(y_shape(s).count());
      plain().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), flag ? in(bias, bias_shape(s)) : InputView(),
                     flag, out(expected, y_shape(s)), stream());
      const GuardedFloats own_x(x), own_weight(weight), own_bias(bias), y(Floats(expected.size(), 77));
      patch_products::conv2d(s, own_x.data(), own_weight.data(), flag ? own_bias.data() : nullptr, flag, y.data());
      expect_same_bits(y.copy(), expected, fmt::format("{}, {}", name_of(s), flag));
      if (HasFatalFailure()) return;
    }
}

TEST(PatchProducts, BackwardDataIsThePlainKernels) {
  for (const Conv2dShape& s : patch_shapes())
    for (const bool accumulate : {false, true}) {
      const Floats y_grad = whole_numbers(y_shape(s).count(), 4), weight = whole_numbers(weight_shape(s).count(), 5);
      Floats expected = whole_numbers(x_shape(s).count(), 6);
      const GuardedFloats own_y_grad(y_grad), own_weight(weight), x_grad(expected);
      plain().conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)),
                                   out(expected, x_shape(s), accumulate), stream());
      patch_products::conv2d_backward_data(s, own_y_grad.data(), own_weight.data(), x_grad.data(), accumulate);
      expect_same_bits(x_grad.copy(), expected, fmt::format("{}, {}", name_of(s), accumulate));
      if (HasFatalFailure()) return;
    }
}

TEST(PatchProducts, BackwardWeightsIsThePlainKernels) {
  for (const Conv2dShape& s : patch_shapes())
    for (const bool accumulate : {false, true}) {
      const Floats x = whole_numbers(x_shape(s).count(), 7), y_grad = whole_numbers(y_shape(s).count(), 8);
      Floats expected = whole_numbers(weight_shape(s).count(), 9);
      const GuardedFloats own_x(x), own_y_grad(y_grad), weight_grad(expected);
      plain().conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)),
                                      out(expected, weight_shape(s), accumulate), {}, stream());
      patch_products::conv2d_backward_weights(s, own_x.data(), own_y_grad.data(), weight_grad.data(), accumulate);
      expect_same_bits(weight_grad.copy(), expected, fmt::format("{}, {}", name_of(s), accumulate));
      if (HasFatalFailure()) return;
    }
}

// Random floats; shapes with several blocks, and sums of several parts.
TEST(PatchProductsThreads, ChangeNoBit) {
  set_compute_threads(3);
  if (compute_threads() != 3) GTEST_SKIP() << "OMP_NUM_THREADS is set";
  for (const Conv2dShape& s : {conv2d_shape(40, 7, 6, 5, 21, 3, 3, 1, 1, {1, 1, 1, 1}),
                               conv2d_shape(3, 30, 20, 6, 10, 3, 2, 1, 1, {1, 0, 1, 1}),
                               conv2d_shape(50, 8, 8, 33, 30, 1, 1, 1, 1, {0, 0, 0, 0}),
                               in_groups(3, conv2d_shape(33, 6, 6, 9, 12, 3, 3, 2, 1, {1, 1, 1, 1}))}) {
    const Floats x = uniform(x_shape(s).count(), 1), weight = uniform(weight_shape(s).count(), 2),
                 y_grad = uniform(y_shape(s).count(), 3);
    const auto run = [&](int threads) {
      set_compute_threads(threads);
      std::array<Floats, 3> results = {Floats(y_grad.size()), Floats(x.size()), Floats(weight.size())};
      patch_products::conv2d(s, x.data(), weight.data(), nullptr, true, results[0].data());
      patch_products::conv2d_backward_data(s, y_grad.data(), weight.data(), results[1].data(), false);
      patch_products::conv2d_backward_weights(s, x.data(), y_grad.data(), results[2].data(), false);
      return results;
    };
    const auto alone = run(1);
    for (const int threads : {2, 3, 5}) {
      const auto shared = run(threads);
      for (std::size_t i = 0; i < 3; ++i)
        expect_same_bits(shared[i], alone[i], fmt::format("{}, result {}, {} threads", name_of(s), i, threads));
    }
  }
  set_compute_threads(0);
}

}  // namespace
}  // namespace lockstep::testing
