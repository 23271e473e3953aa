// 16-bit floats in parts: the same results as from copies of whole operands, for sizes next to a part's, and without
// memory for such copies.
#include "kernels/cpu/math/in_parts.h"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <utility>

#include "tests/kernels/cpu/exact.h"
#include "tests/kernels/guarded_memory.h"

namespace lockstep::testing {
namespace {

constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat16};

// An operand that kernels may change, as 16-bit floats or as the same values in float32.
class Operand {
 public:
  Operand(DType type, const Shape& shape, unsigned seed, bool accumulate = false)
      : type_(type),
        shape_(shape),
        accumulate_(accumulate),
        halves_(type, uniform(shape.count(), seed)),
        floats_(static_cast<std::size_t>(shape.count())) {
    widen(type, halves_.data(), floats_.data(), shape.count());
  }
  OutputView halves() { return {halves_.data(), type_, shape_, accumulate_}; }
  OutputView floats() { return {floats_.data(), shape_, accumulate_}; }
  void expect_same(const std::string& what) {
    const GuardedHalves rounded(type_, floats_);
    EXPECT_EQ(std::memcmp(halves_.data(), rounded.data(), floats_.size() * 2), 0) << what;
    widen(type_, rounded.data(), floats_.data(), shape_.count());  // for the next kernel
  }

 private:
  DType type_;
  Shape shape_;
  bool accumulate_;
  GuardedHalves halves_;
  Floats floats_;
};

TEST(InParts, ElementwiseKernelsRoundTheSameFloats) {
  for (const DType type : kTypes)
    for (const Index count : {1, 2047, 2048, 2049, 5000, 70001}) {
      const std::string what = fmt::format("{} of {}", count, name_of(type));
      Operand a(type, {count}, 1), b(type, {count}, 2), c(type, {count}, 3), added(type, {count}, 4, true);
      const auto both = [&](const auto& kernel) {
        kernel([](Operand& operand) { return operand.halves(); });
        kernel([](Operand& operand) { return operand.floats(); });
      };
      both([&](const auto& of) { tested().add(of(a), of(b), of(c), stream()); });
      c.expect_same("add " + what);
      both([&](const auto& of) { tested().scale(of(a), 0.3F, of(added), stream()); });
      added.expect_same("scale " + what);
      both([&](const auto& of) { tested().relu(of(a), of(a), stream()); });
      a.expect_same("relu in place " + what);
      both([&](const auto& of) { tested().relu_backward(of(a), of(b), stream()); });
      b.expect_same("relu backward " + what);
      both([&](const auto& of) { tested().unary({UnaryFunction::kTanh, 0}, of(c), of(c), stream()); });
      c.expect_same("tanh in place " + what);
      both([&](const auto& of) {
        tested().unary_backward({UnaryFunction::kTanh, 0}, of(c), of(b), of(added), stream());
      });
      added.expect_same("tanh backward " + what);
      const DropoutParams dropped{0.3F, 5, 6, 3};
      both([&](const auto& of) { tested().dropout(dropped, of(a), of(c), stream()); });
      c.expect_same("dropout " + what);
    }
}

// Rows of other ranks lie between those of this one.
TEST(InParts, DropoutIsCutBetweenRows) {
  for (const Index row : {3, 700, 3000}) {
    Operand x(DType::kBFloat16, {10 * row}, 1), y(DType::kBFloat16, {10 * row}, 2);
    const DropoutParams params{0.5F, 1, 2, 7 * row, row, 3 * row};
    tested().dropout(params, x.halves(), y.halves(), stream());
    tested().dropout(params, x.floats(), y.floats(), stream());
    y.expect_same(fmt::format("rows of {}", row));
  }
}

TEST(InParts, BroadcastOperandsAreWidenedWhereTheyAreRead) {
  const std::vector<std::vector<Shape>> shapes = {{{70, 90}, {90}, {70, 90}},     {{5000}, {1}, {5000}},
                                                  {{3, 5000}, {3, 1}, {3, 5000}}, {{7, 1, 9}, {1, 700, 1}, {7, 700, 9}},
                                                  {{40, 60}, {40, 60}, {40, 60}}, {{1}, {2, 3000}, {2, 3000}}};
  for (const DType type : kTypes)
    for (const std::vector<Shape>& of : shapes) {
      const std::string what = fmt::format("{} with {}", of[0].text(), of[1].text());
      Operand a(type, of[0], 1), b(type, of[1], 2), out(type, of[2], 3);
      for (const BinaryFunction function : {BinaryFunction::kMul, BinaryFunction::kPow}) {
        tested().binary(function, a.halves(), b.halves(), out.halves(), stream());
        tested().binary(function, a.floats(), b.floats(), out.floats(), stream());
        out.expect_same(what);
      }
      std::vector<std::uint8_t> mask(static_cast<std::size_t>(of[2].count())), wide_mask(mask.size());
      tested().compare(Comparison::kGreater, a.halves(), b.halves(), {mask.data(), of[2]}, stream());
      tested().compare(Comparison::kGreater, a.floats(), b.floats(), {wide_mask.data(), of[2]}, stream());
      EXPECT_EQ(mask, wide_mask) << what;
      tested().where({mask.data(), of[2]}, a.halves(), b.halves(), out.halves(), stream());
      tested().where({mask.data(), of[2]}, a.floats(), b.floats(), out.floats(), stream());
      out.expect_same("where, " + what);
    }
}

TEST(InParts, RowsAndImagesKeepTheirSizes) {
  for (const DType type : kTypes)
    for (const auto& [rows, width] : std::vector<std::pair<Index, Index>>{{1, 5000}, {3, 2048}, {500, 7}, {77, 100}}) {
      const std::string what = fmt::format("{} x {}, {}", rows, width, name_of(type));
      const Shape shape = {rows, width};
      Operand x(type, shape, 1), y(type, shape, 2), grad(type, shape, 3), x_grad(type, shape, 4, true);
      Floats mean(rows), rstd(rows), wide_mean(rows), wide_rstd(rows);
      tested().softmax(x.halves(), false, y.halves(), stream());
      tested().softmax(x.floats(), false, y.floats(), stream());
      y.expect_same("softmax " + what);
      tested().layer_norm(x.halves(), {}, {}, 1e-5F, y.halves(), out(mean), out(rstd), stream());
      tested().layer_norm(x.floats(), {}, {}, 1e-5F, y.floats(), out(wide_mean), out(wide_rstd), stream());
      y.expect_same("layer norm " + what);
      expect_same_bits(mean, wide_mean, what), expect_same_bits(rstd, wide_rstd, what);
      tested().layer_norm_backward(x.halves(), {}, in(mean), in(rstd), grad.halves(), x_grad.halves(), {}, {},
                                   stream());
      tested().layer_norm_backward(x.floats(), {}, in(mean), in(rstd), grad.floats(), x_grad.floats(), {}, {},
                                   stream());
      x_grad.expect_same("layer norm backward " + what);
      Operand bias(type, {width}, 5);
      tested().bias(y.halves(), bias.halves(), stream());
      tested().bias(y.floats(), bias.floats(), stream());
      y.expect_same("bias " + what);
      Floats sums(width, 1.0F), wide_sums = sums;
      tested().bias_backward(y.halves(), out(sums, {width}, true), stream());
      tested().bias_backward(y.floats(), out(wide_sums, {width}, true), stream());
      expect_close(sums, wide_sums, 1e-5F, "bias backward " + what);
    }
}

// Sums over each set of dimensions; the partial sums of a long first dimension are added in float32.
TEST(InParts, SumsAreAddedInFloat) {
  for (const auto& [x_shape, y_shape] : std::vector<std::pair<Shape, Shape>>{{{400000}, {}},
                                                                             {{1, 3, 200000}, {1, 3, 1}},
                                                                             {{70, 5000}, {70, 1}},
                                                                             {{5000, 70}, {70}},
                                                                             {{5000, 70}, {1, 70}},
                                                                             {{}, {}},
                                                                             {{1, 1}, {1, 1}}}) {
    Operand x(DType::kBFloat16, x_shape, 1);
    Floats sums(static_cast<std::size_t>(y_shape.count()), 2.0F), wide_sums = sums;
    tested().sum(x.halves(), 0.5F, out(sums, y_shape, true), stream());
    tested().sum(x.floats(), 0.5F, out(wide_sums, y_shape, true), stream());
    expect_close(sums, wide_sums, 1e-6F, x_shape.text() + " to " + y_shape.text());
  }
}

// Resident memory of this process in MiB, now and at most since the last call of forget_peak().
double mib_of(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stod(line.substr(field.size())) / 1024;
  return 0;
}
bool forget_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << 5 << std::flush); }

TEST(InParts, NoWholeOperandIsCopied) {
  constexpr Index kCount = Index{1} << 24U, kWidth = 1024;  // 32 MiB each, 64 MiB as float32
  Operand x(DType::kBFloat16, {kCount / kWidth, kWidth}, 1), y(DType::kBFloat16, {kCount / kWidth, kWidth}, 2);
  const auto expect_little = [](const std::string& name, const auto& call) {
    call();  // the allocator keeps small blocks
    if (!forget_peak()) GTEST_SKIP() << "the system does not reset a process's peak memory";
    const double before = mib_of("VmRSS:");
    call();
    EXPECT_LT(mib_of("VmHWM:") - before, 16) << name;
  };
  expect_little("relu", [&] { tested().relu(x.halves(), y.halves(), stream()); });
  expect_little("add", [&] { tested().add(x.halves(), x.halves(), y.halves(), stream()); });
  expect_little("softmax", [&] { tested().softmax(x.halves(), false, y.halves(), stream()); });
  Floats mean(kWidth), variance(kWidth, 1.0F);
  expect_little("batch norm", [&] {
    tested().batch_norm_statistics(x.halves(), out(mean), out(variance), stream());
    tested().batch_norm({.eps = 1e-5F}, x.halves(), in(mean), in(variance), {}, {}, y.halves(), stream());
  });
  Floats sum(1);
  expect_little("sum", [&] { tested().sum(x.halves(), 1, out(sum), stream()); });
}

}  // namespace
}  // namespace lockstep::testing
