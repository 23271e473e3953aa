// The CPU's vector kernels on random shapes against the plain ones. The cases of kernels/cases are few and chosen; here
// sizes lie next to the widths of vectors, tiles and blocks of each instruction set.
#include <limits>
#include <random>

#include "kernels/cases/products.h"
#include "tests/kernels/reference_comparison.h"

namespace lockstep::testing {
namespace {

class RandomShapes : public ReferenceComparison {
 protected:
  static constexpr int kTimes = 60;

  bool flip() { return random_() % 2 == 0; }
  Index between(Index least, Index most) {
    return least + static_cast<Index>(random_() % static_cast<unsigned>(most - least + 1));
  }
  // Often next to a multiple of 4, 8 or 16.
  Index size(Index most) {
    if (random_() % 3 == 0) return between(1, most);
    const Index near = between(0, most / 4) * 4 + between(-1, 1);
    return std::clamp<Index>(near, 1, most);
  }
  Conv2dShape convolution();
  Pool2dShape pooling();

  std::mt19937 random_{11};
};
INSTANTIATE_TEST_SUITE_P(Devices, RandomShapes, ::testing::Values("cpu"), [](const auto& test) { return test.param; });

// Shapes for all of the device's candidates: square windows for Winograd's, few channels, depthwise and other groups.
Conv2dShape RandomShapes::convolution() {
  const Index kind = between(0, 5), square = flip() ? 3 : 5;
  const bool is_winograd = kind == 0 || kind == 1;
  const Index height = is_winograd ? square : between(1, 5), width = is_winograd           ? square
                                                                     : kind == 3 && flip() ? 3
                                                                                           : between(1, 5);
  Index groups = 1, in = size(24), out = size(40);
  if (kind == 0) in = between(1, 4) * 16, out = between(1, 3) * 16;  // enough of both
  if (kind == 1) in = between(1, 8), out = between(1, 4) * 16;       // few inputs
  if (kind == 2) groups = in = out = size(40);                       // depthwise
  if (kind == 3) in = out = between(1, 3) * 16, groups = in / (2 << between(0, 2));
  if (kind == 4) groups = between(1, 4), in = groups * between(1, 9), out = groups * between(1, 9);
  const Index stride_height = is_winograd || kind == 3 ? 1 : between(1, 3),
              stride_width = is_winograd || kind == 3 ? 1 : between(1, 2);
  std::array<Index, 4> pads{};
  for (std::size_t i = 0; i < 4; ++i) pads[i] = between(0, (i % 2 == 0 ? height : width) - 1);
  const bool is_dilated = between(0, 3) == 0;
  const Index down = is_dilated ? between(1, 3) : 1, across = is_dilated ? between(1, 3) : 1;
  const Index least_height = (height - 1) * down + 1, least_width = (width - 1) * across + 1;
  return dilated(down, across,
                 in_groups(groups, conv2d_shape(between(1, 5), between(least_height, least_height + 9),
                                                between(least_width, least_width + 9), in, out, height, width,
                                                stride_height, stride_width, pads)));
}

// Errors of Winograd's filtering are relative to the values of a tile, also where few of its products are summed.
constexpr Bound kConvolved{.products = 2e-5F, .largest = 1e-5F};

TEST_P(RandomShapes, Conv2d) {
  for (int i = 0; i < 2 * kTimes && !HasFatalFailure(); ++i) {
    const Conv2dShape s = convolution();
    const bool flag = flip(), accumulate = flip();
    const Work work = [=](Bench& b) {
      const InputView x = cases::in(b, x_shape(s), 1), weight = cases::in(b, weight_shape(s), 2),
                      bias = cases::in(b, bias_shape(s), 3), y_grad = cases::in(b, y_shape(s), 4);
      const OutputView y = cases::out(b, y_shape(s), 5), x_grad = cases::out(b, x_shape(s), 6, accumulate);
      const OutputView weight_grad = cases::floats_out(b, weight_shape(s), 7, accumulate, Place::kAligned);
      const OutputView bias_grad = cases::floats_out(b, bias_shape(s), 8, !accumulate, Place::kAligned);
      return [=, &b] {
        b.kernels.conv2d(s, x, weight, flag ? bias : InputView(), !flag, y, b.stream());
        b.kernels.conv2d_backward_data(s, y_grad, weight, x_grad, b.stream());
        b.kernels.conv2d_backward_weights(s, x, y_grad, weight_grad, flag ? bias_grad : OutputView(), b.stream());
      };
    };
    compare(testing::name_of(s), {kConvolved}, work);
    Bound in_bfloat16 = rounded(DType::kBFloat16, true);
    in_bfloat16.largest = kConvolved.largest;
    compare(testing::name_of(s) + ", bfloat16", {in_bfloat16}, work, DType::kBFloat16);
  }
}

TEST_P(RandomShapes, Linear) {
  for (int i = 0; i < kTimes && !HasFatalFailure(); ++i) {
    const LinearShape s{size(i % 8 == 0 ? 400 : 70), size(140), size(i % 8 == 1 ? 500 : 100)};
    const bool flag = flip();
    compare(testing::name_of(s), {kSums}, [=](Bench& b) {
      const InputView x = cases::in(b, x_shape(s), 1), weight = cases::in(b, weight_shape(s), 2),
                      bias = cases::in(b, bias_shape(s), 3), y_grad = cases::in(b, y_shape(s), 4);
      const OutputView y = cases::out(b, y_shape(s), 5), x_grad = cases::out(b, x_shape(s), 6, flag),
                       weight_grad = cases::floats_out(b, weight_shape(s), 7, flag, Place::kAligned),
                       bias_grad = cases::floats_out(b, bias_shape(s), 8, !flag, Place::kAligned);
      return [=, &b] {
        b.kernels.linear(x, weight, flag ? bias : InputView(), !flag, y, b.stream());
        b.kernels.linear_backward_data(y_grad, weight, x_grad, b.stream());
        b.kernels.linear_backward_weights(x, y_grad, weight_grad, bias_grad, b.stream());
      };
    });
  }
}

TEST_P(RandomShapes, Matmul) {
  for (int i = 0; i < kTimes && !HasFatalFailure(); ++i) {
    const Index batch = i % 5 == 0 ? 1 : between(1, 5), rows = size(i % 5 == 0 ? 260 : 70), columns = size(100),
                inner = size(i % 7 == 0 ? 500 : 90);
    const bool transpose_a = flip(), transpose_b = flip(), accumulate = flip();
    const Shape of_a = transpose_a ? Shape{batch, inner, rows} : Shape{batch, rows, inner},
                of_b = transpose_b ? Shape{batch, columns, inner} : Shape{batch, inner, columns};
    compare(fmt::format("{} x ({}, {}){} by {}{}", batch, rows, inner, transpose_a, columns, transpose_b), {kSums},
            [=](Bench& b) {
              const InputView left = cases::in(b, of_a, 1), right = cases::in(b, of_b, 2);
              const OutputView c = cases::out(b, {batch, rows, columns}, 3, accumulate);
              return [=, &b] { b.kernels.matmul(left, transpose_a, right, transpose_b, c, b.stream()); };
            });
  }
}

// Grouped heads, a causal mask that is shifted, lengths of the samples, and masks, in all combinations. Some rows of a
// mask are hidden, as a whole or in part, and some have numbers that leave no digits for what is added to them.
TEST_P(RandomShapes, Attention) {
  for (int i = 0; i < 2 * kTimes && !HasFatalFailure(); ++i) {
    const bool causal = flip(), accumulate = flip(), packed = causal && flip(), shifted = causal && !packed && flip();
    const Index batch = between(1, 2), key_heads = between(1, 3), group = packed ? 1 : between(1, 3),
                heads = group * key_heads, width = size(i % 10 == 0 ? 140 : 70), queries = size(i % 6 == 0 ? 260 : 60),
                keys = causal && !shifted ? queries : size(i % 6 == 0 ? 400 : 60);
    const Shape of_q = packed ? Shape{batch, queries, 3, heads, width} : Shape{batch, queries, heads, width},
                of_k = {batch, keys, key_heads, width}, of_y = {batch, queries, heads, width};
    AttentionParams params{1 / std::sqrt(static_cast<float>(width)), causal};
    if (shifted && flip()) params.causal_offset = keys - queries;
    std::vector<std::int64_t> lengths;
    for (Index n = 0; n < batch; ++n) lengths.push_back(between(0, keys));
    const bool has_lengths = flip(), has_mask = flip();
    const Index mask_rows = flip() ? queries : 1, mask_heads = flip() ? heads : 1, mask_samples = flip() ? batch : 1;
    std::vector<float> mask;
    for (Index row = 0; row < mask_samples * mask_heads * mask_rows; ++row) {
      const Index kind = between(0, 5);
      for (Index key = 0; key < keys; ++key) {
        const bool is_hidden = kind == 0 || (kind == 1 && key * 2 < keys) || between(0, 9) == 0;
        const float number = kind == 2 ? -1e9F : static_cast<float>(between(-20, 20)) / 8;
        mask.push_back(is_hidden ? -std::numeric_limits<float>::infinity() : number);
      }
    }
    constexpr Bound kAttended{.value = 2e-5F, .largest = 1e-5F, .absolute = 1e-6F};
    compare(fmt::format(
                "{} x {} queries, {} keys, {} heads of {}, {} of keys, causal {} + {}, packed {}, lengths {}, mask {}",
                batch, queries, keys, heads, width, key_heads, causal, params.causal_offset, packed,
                has_lengths ? lengths.front() : -1, has_mask),
            {kAttended}, [=](Bench& b) {
              const auto operand = [&](unsigned seed) { return packed ? InputView() : cases::in(b, of_k, seed); };
              const auto grad = [&](unsigned seed) {
                return packed ? OutputView() : cases::out(b, of_k, seed, accumulate);
              };
              const InputView q = cases::in(b, of_q, 1), k = operand(2), v = operand(3), y_grad = cases::in(b, of_y, 4);
              const OutputView y = cases::out(b, of_y, 5), log_sums = cases::out(b, {batch, heads, queries}, 6),
                               q_grad = cases::out(b, of_q, 7, accumulate), k_grad = grad(8), v_grad = grad(9);
              return [=, &b] {
                AttentionParams all_params = params;
                if (has_lengths) all_params.key_lengths = lengths.data();
                if (has_mask) {
                  all_params.mask = mask.data();
                  all_params.mask_strides[0] = mask_samples == 1 ? 0 : mask_heads * mask_rows * keys;
                  all_params.mask_strides[1] = mask_heads == 1 ? 0 : mask_rows * keys;
                  all_params.mask_strides[2] = mask_rows == 1 ? 0 : keys;
                }
                b.kernels.attention(all_params, q, k, v, y, log_sums, b.stream());
                b.kernels.attention_backward(all_params, q, k, v, y, log_sums, y_grad, q_grad, k_grad, v_grad,
                                             b.stream());
              };
            });
  }
}

Pool2dShape RandomShapes::pooling() {
  const Index window_height = between(1, 4), window_width = between(1, 4), stride_height = between(1, 3),
              stride_width = between(1, 3);
  const Index height = between(window_height, 11), width = between(window_width, 11);
  const std::array<Index, 4> pads = {between(0, window_height - 1), between(0, window_width - 1),
                                     between(0, window_height - 1), between(0, window_width - 1)};
  return {between(1, 3),
          height,
          width,
          size(70),
          (height + pads[0] + pads[2] - window_height) / stride_height + 1,
          (width + pads[1] + pads[3] - window_width) / stride_width + 1,
          window_height,
          window_width,
          stride_height,
          stride_width,
          pads[0],
          pads[1],
          pads[2],
          pads[3]};
}

TEST_P(RandomShapes, Pooling) {
  for (int i = 0; i < kTimes && !HasFatalFailure(); ++i) {
    const Pool2dShape s = pooling();
    const bool flag = flip(), with_nan = i % 4 == 0;
    const std::string name =
        fmt::format("{}, {} x {}, flag {}", testing::name_of(s), s.window_width, s.stride_width, flag);
    compare(name, {kExact, kExact, {.products = 1e-6F, .absolute = 1e-6F}}, [=](Bench& b) {
      Floats values = whole_numbers(x_shape(s).count(), 1);
      for (std::size_t at = 0; with_nan && at < values.size(); at += 13) values[at] = cases::kNan;
      const auto count = static_cast<std::size_t>(y_shape(s).count());
      const InputView x = b.in(x_shape(s), std::move(values)), y_grad = cases::in(b, y_shape(s), 3);
      std::uint16_t* const argmax = b.plain_out(std::vector<std::uint16_t>(count, 999));
      const OutputView y = cases::out(b, y_shape(s), 2), x_grad = cases::out(b, x_shape(s), 4, flag);
      return [=, &b] {
        b.kernels.max_pool2d(s, x, y, argmax, b.stream());
        b.kernels.max_pool2d_backward(s, y_grad, argmax, x_grad, b.stream());
      };
    });
    compare("mean of " + name, {{.largest = 2e-6F, .absolute = 1e-6F}}, [=](Bench& b) {
      const InputView x = cases::in(b, x_shape(s), 1), y_grad = cases::in(b, y_shape(s), 3);
      const OutputView y = cases::out(b, y_shape(s), 2), x_grad = cases::out(b, x_shape(s), 4, flag);
      return [=, &b] {
        b.kernels.avg_pool2d(s, flag, x, y, b.stream());
        b.kernels.avg_pool2d_backward(s, flag, y_grad, x_grad, b.stream());
      };
    });
  }
}

constexpr Bound kNormed{.products = 1e-5F, .value = 1e-5F, .largest = 1e-5F, .absolute = 1e-5F};

TEST_P(RandomShapes, Norms) {
  constexpr float kEpsilon = 0.1F;  // a row of one element has a variance of 0
  for (int i = 0; i < kTimes && !HasFatalFailure(); ++i) {
    const Index rows = size(70), groups = between(1, 4), channels = groups * size(40), pixels = between(1, 9);
    const Shape of = {rows, channels}, of_each = {channels}, of_row = {rows}, images = {3, pixels, channels};
    const bool relu = flip(), accumulate = flip(), centred = flip();
    compare(fmt::format("{} rows of {}, groups {}", rows, channels, groups), {kNormed}, [=](Bench& b) {
      const InputView x = cases::in(b, of, 1), y_grad = cases::in(b, of, 2), weight = cases::in(b, of_each, 3),
                      bias = cases::in(b, of_each, 4), image = cases::in(b, images, 5);
      const OutputView mean = cases::out(b, of_each, 6), variance = cases::out(b, of_each, 7), y = cases::out(b, of, 8),
                       x_grad = cases::out(b, of, 9, accumulate), weight_grad = cases::out(b, of_each, 10, accumulate),
                       bias_grad = cases::out(b, of_each, 11, accumulate), row_y = cases::out(b, of, 12),
                       row_mean = centred ? cases::out(b, of_row, 13) : OutputView(), rstd = cases::out(b, of_row, 14),
                       row_grad = cases::out(b, of, 15, accumulate), image_y = cases::out(b, images, 16),
                       image_mean = cases::out(b, {3, groups}, 17), image_rstd = cases::out(b, {3, groups}, 18);
      const BatchNormParams params{.eps = kEpsilon, .relu = relu};
      return [=, &b] {
        b.kernels.batch_norm_statistics(x, mean, variance, b.stream());
        b.kernels.batch_norm(params, x, mean, variance, weight, bias, y, b.stream());
        b.kernels.batch_norm_backward({.eps = kEpsilon}, x, y_grad, mean, variance, weight, bias, x_grad, weight_grad,
                                      bias_grad, b.stream());
        b.kernels.layer_norm(x, weight, bias, kEpsilon, row_y, row_mean, rstd, b.stream());
        b.kernels.layer_norm_backward(x, weight, row_mean, rstd, y_grad, row_grad, {}, {}, b.stream());
        b.kernels.group_norm(groups, image, weight, bias, kEpsilon, image_y, image_mean, image_rstd, b.stream());
      };
    });
  }
}

TEST_P(RandomShapes, RecurrentSteps) {
  for (int i = 0; i < kTimes && !HasFatalFailure(); ++i) {
    const Shape state = {size(9), size(i % 6 == 0 ? 200 : 40)}, three = {state[0], 3 * state[1]},
                four = {state[0], 4 * state[1]};
    std::vector<std::int64_t> lengths;
    for (Index row = 0; row < state[0]; ++row) lengths.push_back(between(0, 4));
    const bool has_lengths = flip();
    const Index step = between(0, 3);
    constexpr Bound kOfAStep{.value = 2e-5F, .absolute = 5e-6F};
    compare(
        fmt::format("{} x {}, step {}, lengths {}", state[0], state[1], step, has_lengths), {kOfAStep}, [=](Bench& b) {
          const InputView ends = has_lengths ? b.labels_in(lengths) : InputView();
          const InputView of_four = cases::in(b, four, 1), of_three = cases::in(b, three, 2),
                          other_three = cases::in(b, three, 3), before = cases::in(b, state, 4),
                          c_before = cases::in(b, state, 5), gates = cases::in(b, four, 6),
                          grads = cases::in(b, state, 7);
          const OutputView h = cases::out(b, state, 8), c = cases::out(b, state, 9), in_place = cases::out(b, four, 10),
                           grad_of_four = cases::out(b, four, 11), c_grad = cases::out(b, state, 12),
                           h_grad = cases::out(b, state, 13), gru_gates = cases::out(b, four, 14),
                           gru_h = cases::out(b, state, 15), grad_of_three = cases::out(b, three, 16),
                           other_grad = cases::out(b, three, 17), gru_grad = cases::out(b, state, 18);
          return [=, &b] {
            b.kernels.lstm_step(step, of_four, before, c_before, ends, in_place, h, c, b.stream());
            b.kernels.lstm_step_backward(step, gates, c_before, before, grads, ends, grad_of_four, h_grad, c_grad,
                                         b.stream());
            b.kernels.gru_step(step, of_three, other_three, before, ends, gru_gates, gru_h, b.stream());
            b.kernels.gru_step_backward(step, gates, before, grads, ends, grad_of_three, other_grad, gru_grad,
                                        b.stream());
          };
        });
  }
}

TEST_P(RandomShapes, Resampling) {
  for (int i = 0; i < kTimes && !HasFatalFailure(); ++i) {
    Resample2dShape s{between(1, 3),
                      size(12),
                      size(12),
                      size(i % 5 == 0 ? 70 : 20),
                      size(15),
                      size(15),
                      0,
                      0,
                      static_cast<ResampleRule>(between(0, 3))};
    const auto scale = [&](Index in, Index out) {
      if (s.rule != ResampleRule::kLinearCorners) return static_cast<float>(in) / static_cast<float>(out);
      return out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0F;
    };
    s.scale_height = scale(s.in_height, s.out_height), s.scale_width = scale(s.in_width, s.out_width);
    const bool accumulate = flip();
    const Shape of_x = {s.batch, s.in_height, s.in_width, s.channels},
                of_y = {s.batch, s.out_height, s.out_width, s.channels};
    compare(fmt::format("{} to {} by rule {}", of_x.text(), of_y.text(), static_cast<int>(s.rule)),
            {{.largest = 5e-6F, .absolute = 1e-6F}}, [=](Bench& b) {
              const InputView x = cases::in(b, of_x, 1), y_grad = cases::in(b, of_y, 2);
              const OutputView y = cases::out(b, of_y, 3), x_grad = cases::out(b, of_x, 4, accumulate);
              return [=, &b] {
                b.kernels.resample2d(s, x, y, b.stream());
                b.kernels.resample2d_backward(s, y_grad, x_grad, b.stream());
              };
            });
  }
}

TEST_P(RandomShapes, SoftmaxAndReductions) {
  for (int i = 0; i < 2 * kTimes && !HasFatalFailure(); ++i) {
    const Index rows = size(40), channels = size(i % 4 == 0 ? 600 : 70);
    const Shape of = {rows, channels};
    const bool log = flip(), accumulate = flip();
    compare(fmt::format("{} rows of {}, log {}", rows, channels, log),
            {{.value = 1e-5F, .absolute = 1e-5F}, {.value = 2e-5F, .absolute = 1e-5F}, kSums}, [=](Bench& b) {
              Floats values = uniform(rows * channels, 1);
              for (float& value : values) value *= 8;
              const InputView x = b.in(of, std::move(values)), y_grad = cases::in(b, of, 2);
              const OutputView y = cases::out(b, of, 3), x_grad = cases::out(b, of, 4, accumulate),
                               bias_grad = cases::out(b, {channels}, 5, accumulate), sum = cases::out(b, {}, 6),
                               of_rows = cases::out(b, {rows, 1}, 7), of_columns = cases::out(b, {channels}, 8);
              return [=, &b] {
                b.kernels.softmax(x, log, y, b.stream());
                b.kernels.softmax_backward(y, y_grad, log, x_grad, b.stream());
                b.kernels.bias_backward(y_grad, bias_grad, b.stream());
                b.kernels.sum(y_grad, 0.5F, sum, b.stream());
                b.kernels.sum(y_grad, 1, of_rows, b.stream());
                b.kernels.sum(y_grad, 1, of_columns, b.stream());
              };
            });
  }
}

// A few ulps for functions; exact otherwise.
TEST_P(RandomShapes, Elementwise) {
  for (int i = 0; i < kTimes && !HasFatalFailure(); ++i) {
    const Index count = i % 10 == 0 ? size(5000) : size(100);
    const auto& info = kUnaryFunctions[static_cast<std::size_t>(i) % std::size(kUnaryFunctions)];
    const UnaryOperation function{info.function, info.parameter, info.second};
    const bool accumulate = flip();
    const Shape of = {count};
    compare(fmt::format("{} elements, function {}", count, static_cast<int>(info.function)),
            {kExact, kExact, kExact, {.value = 1e-5F, .absolute = 1e-6F}}, [=](Bench& b) {
              Floats values = uniform(count, 1);
              for (float& value : values) value = 2 * value + 3;
              const InputView x = cases::in(b, of, 2), y = cases::in(b, of, 3), above_1 = b.in(of, std::move(values));
              const OutputView sum = cases::out(b, of, 4), scaled = cases::out(b, of, 5, accumulate),
                               clamped = cases::out(b, of, 6), result = cases::out(b, of, 7),
                               grad = cases::out(b, of, 8);
              return [=, &b] {
                b.kernels.add(x, y, sum, b.stream());
                b.kernels.scale(x, 0.7F, scaled, b.stream());
                b.kernels.relu(x, clamped, b.stream());
                b.kernels.unary(function, above_1, result, b.stream());
                b.kernels.unary_backward(function,
                                         info_of(info.function).slope_from == SlopeFrom::kResult ? result : above_1, y,
                                         grad, b.stream());
              };
            });
  }
}

}  // namespace
}  // namespace lockstep::testing
