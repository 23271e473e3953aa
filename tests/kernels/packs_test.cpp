// Kernels of GPUs that move packs of adjacent channels if the channels and the pointers allow it: both ways, against
// the plain CPU kernels.
#include "kernels/cases/shapes.h"
#include "tests/kernels/reference_comparison.h"

namespace lockstep::testing {
namespace {

class Packs : public ReferenceComparison {
 protected:
  // Calls test(type, place, its name) for aligned operands and others.
  template <typename Test> void for_all_places(const Test& test) {
    for (const DType type : kComparedTypes)
      for (const Place place : {Place::kAligned, Place::kOneElementOff})
        if (!HasFatalFailure())
          test(type, place, fmt::format("{}{}", name_of(type), place == Place::kAligned ? "" : ", one element off"));
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Packs, ::testing::Values("cuda", "emulated_forwards"),
                         [](const auto& test) { return test.param; });

// The operands of a test, all with the same place.
struct Operands {
  Bench& b;
  Place place;
  bool accumulate = false;

  InputView in(const Shape& shape, unsigned seed) const { return b.in(shape, uniform(shape.count(), seed), place); }
  OutputView out(const Shape& shape, unsigned seed) const {
    return b.out(shape, uniform(shape.count(), seed), false, place);
  }
  OutputView grad(const Shape& shape, unsigned seed) const {
    return b.out(shape, uniform(shape.count(), seed), accumulate, place);
  }
  InputView floats(const Shape& shape, unsigned seed) const {
    return b.floats_in(shape, uniform(shape.count(), seed), place);
  }
  OutputView floats_grad(const Shape& shape, unsigned seed) const {
    return b.floats_out(shape, uniform(shape.count(), seed), accumulate, place);
  }
  OutputView floats_out(const Shape& shape, unsigned seed) const {
    return b.floats_out(shape, uniform(shape.count(), seed), false, place);
  }
};

// For results that are rounded once to the type, or twice if they are added to others.
Bound close_to(DType type, Bound floats = {.products = 2e-5F, .value = 1e-5F, .largest = 5e-6F, .absolute = 2e-5F}) {
  if (testing::is_half(type)) floats.value += 2 * step_of(type), floats.absolute += 2 * step_of(type);
  return floats;
}

TEST_P(Packs, MaxPooling) {
  for_all_places([&](DType type, Place place, const std::string& name) {
    for (const Index window : {2, 3, 4})
      for (const Index channels : {4, 12, 7}) {
        const Pool2dShape s = pool2d_shape(2, 7, channels, window, 2, 1, 0);
        compare(
            fmt::format("{}: {}", name, testing::name_of(s)), {kExact, kExact, close_to(type)},
            [=](Bench& b) {
              const Operands of{b, place, true};
              const auto count = static_cast<std::size_t>(y_shape(s).count());
              const InputView x = b.in(x_shape(s), whole_numbers(x_shape(s).count(), 1), place),
                              y_grad = of.in(y_shape(s), 2);
              std::uint16_t* const argmax = b.plain_out(std::vector<std::uint16_t>(count, 999));
              const OutputView y = of.out(y_shape(s), 3), x_grad = of.grad(x_shape(s), 4);
              return [=, &b] {
                b.kernels.max_pool2d(s, x, y, argmax, b.stream());
                b.kernels.max_pool2d_backward(s, y_grad, argmax, x_grad, b.stream());
              };
            },
            type);
      }
  });
}

TEST_P(Packs, BatchNorm) {
  for_all_places([&](DType type, Place place, const std::string& name) {
    for (const bool relu : {false, true})
      for (const Index channels : {4, 36, 72, 140, 6}) {
        const Shape of_x{101, channels}, each{channels};
        compare(
            fmt::format("{}: {} channels, relu {}", name, channels, relu), {close_to(type)},
            [=](Bench& b) {
              const Operands of{b, place, relu};
              const InputView x = of.in(of_x, 1), y_grad = of.in(of_x, 2), weight = of.floats(each, 3),
                              bias = of.floats(each, 4), given_mean = of.floats(each, 5),
                              given_variance = b.floats_in(each, Floats(static_cast<std::size_t>(channels), 0.7F));
              const OutputView mean = of.floats_out(each, 6), variance = of.floats_out(each, 7), y = of.out(of_x, 8),
                               x_grad = of.grad(of_x, 9), weight_grad = of.floats_grad(each, 10),
                               bias_grad = of.floats_grad(each, 11);
              const BatchNormParams params{.relu = relu};
              return [=, &b] {
                b.kernels.batch_norm_statistics(x, mean, variance, b.stream());
                b.kernels.batch_norm(params, x, given_mean, given_variance, weight, bias, y, b.stream());
                b.kernels.batch_norm_backward(params, x, y_grad, given_mean, given_variance, weight, bias, x_grad,
                                              weight_grad, bias_grad, b.stream());
              };
            },
            type);
      }
  });
}

// Rows of up to 1024 elements stay in registers; 1, 2, 4 and 8 packs per lane.
TEST_P(Packs, LayerNorm) {
  for_all_places([&](DType type, Place place, const std::string& name) {
    for (const bool centred : {false, true})
      for (const Index channels : {4, 132, 384, 1024, 1028}) {
        const Shape of_x{3, channels}, each{channels}, rows{3};
        compare(
            fmt::format("{}: {} channels, centred {}", name, channels, centred), {close_to(type)},
            [=](Bench& b) {
              const Operands of{b, place, centred};
              const InputView x = of.in(of_x, 1), y_grad = of.in(of_x, 2),
                              weight = centred ? of.floats(each, 3) : InputView(),
                              bias = centred ? of.floats(each, 4) : InputView(), given_rstd = of.floats(rows, 5),
                              given_mean = centred ? of.floats(rows, 6) : InputView();
              const OutputView y = of.out(of_x, 7), mean = centred ? of.floats_out(rows, 8) : OutputView(),
                               rstd = of.floats_out(rows, 9), x_grad = of.grad(of_x, 10),
                               weight_grad = channels < 500 ? of.floats_grad(each, 11) : OutputView(),
                               bias_grad = channels < 500 ? of.floats_grad(each, 12) : OutputView();
              return [=, &b] {
                b.kernels.layer_norm(x, weight, bias, 0.1F, y, mean, rstd, b.stream());
                b.kernels.layer_norm_backward(x, weight, given_mean, given_rstd, y_grad, x_grad, weight_grad, bias_grad,
                                              b.stream());
              };
            },
            type);
      }
  });
}

// 19200 rows of 32 columns, one per thread, are summed in 300 parts.
TEST_P(Packs, BiasAndEmbedding) {
  for_all_places([&](DType type, Place place, const std::string& name) {
    for (const auto& [rows, columns] : std::vector<std::pair<Index, Index>>{{19200, 32}, {77, 140}, {5, 4}}) {
      const Shape of_y{rows, columns}, each{columns}, table{9, columns};
      const auto count = static_cast<std::size_t>(rows);
      compare(
          fmt::format("{}: {} rows of {}", name, rows, columns), {kExact, kExact, kExact, kSums},
          [=](Bench& b) {
            const Operands of{b, place, true};
            std::vector<std::int64_t> words(count);
            for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::int64_t>(i * i % 11) - 1;
            const InputView bias = of.in(each, 1), y_grad = of.in(of_y, 2), weight = of.floats(table, 3),
                            indices = b.labels_in(words);
            const OutputView y = of.out(of_y, 4), embedded = of.out(of_y, 5), table_grad = of.floats_grad(table, 6),
                             bias_grad = of.floats_grad(each, 7);
            return [=, &b] {
              b.kernels.bias(y, bias, b.stream());
              b.kernels.embedding(weight, indices, embedded, b.stream());
              b.kernels.embedding_backward(y_grad, indices, 3, table_grad, b.stream());
              b.kernels.bias_backward(y_grad, bias_grad, b.stream());
            };
          },
          type);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
