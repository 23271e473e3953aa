// The tests and timings of every operator of core/operators.def. There is one function per operator, in the file of its
// family: cases::relu(Cases&) adds the tests, on odd shapes, and the rows of bench/operators, on large ones. An
// operator without such a function does not link.
//
//   void relu(Cases& cases) {
//     for (const Index count : kCounts)
//       cases.test(elements(count), {kExact}, [=](Bench& b) {
//         const InputView x = b.in({count}, uniform(count, 1));
//         const OutputView y = b.out({count}, uniform(count, 2));
//         return [=, &b] { b.kernels.relu(x, y, b.stream()); };
//       });
//   }
//
// A test runs that work on the plain kernels and on the device's and compares all outputs; a benchmark prepares the
// arrays once and repeats the call. Each function is called for float32, float16 and bfloat16; if its operator only
// takes float32, it returns for the others.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cases/bench.h"

namespace lockstep::testing {

// The tolerance for an element: `products` times the sum of absolute products (or the kernel's result for absolute
// values), plus `value` times the value itself, plus `largest` times the largest expected value, plus `absolute`.
struct Bound {
  float products = 0, value = 0, largest = 0, absolute = 0;
};
inline constexpr Bound kExact{};
inline constexpr Bound kSums{.products = 2e-5F};

constexpr bool is_half(DType type) { return type == DType::kFloat16 || type == DType::kBFloat16; }

// The relative distance of two neighbours of a 16-bit type.
constexpr float step_of(DType type) { return type == DType::kFloat16 ? 0x1p-10F : 0x1p-7F; }

// For sums of products in the type under test, written or added to values in -1 .. 1. If a device rounds once to 16
// bits, the result may be the neighbouring number; if it adds in two steps, the next but one.
constexpr Bound rounded(DType type, bool accumulate = false) {
  if (!is_half(type)) return kSums;
  return {.products = 2e-5F, .value = step_of(type), .absolute = 0x1p-23F + (accumulate ? step_of(type) : 0)};
}

// Prepares the arrays and returns the call.
using Call = std::function<void()>;
using Work = std::function<Call(Bench&)>;

// One line of bench/operators. `bytes`: the minimum that the call must move; `bytes` and `flops` of 0 are not shown.
struct Row {
  std::string name;
  double bytes = 0, flops = 0;
  bool is_limit = false;  // its rate is the limit of computation
};

// Sizes of rows: images per step, elements of the large arrays, side of the large product.
struct Sizes {
  Index batch = 128, elements = Index{4} << 20, side = 1024;
};

class Cases {
 public:
  Cases(DType type, const Sizes& sizes) : type(type), sizes(sizes) {}

  const DType type;
  const Sizes sizes;
  bool is_half() const { return testing::is_half(type); }
  double element_bytes() const { return static_cast<double>(size_of(type)); }

  // `bounds` has one bound per output, in the order in which the work created them; the last one applies to all that
  // follow.
  void test(std::string what, std::vector<Bound> bounds, Work work) {
    tests_.push_back({std::move(what), std::move(bounds), std::move(work)});
  }
  void row(Row row, Work work) { rows_.push_back({std::move(row), std::move(work)}); }
  // A row with large arrays, named after their size; `bytes` per element.
  void large_row(const std::string& name, double bytes, const Work& work) {
    const auto elements = static_cast<double>(sizes.elements);
    row({.name = fmt::format("{} {:.1f} M", name, elements / (1 << 20)), .bytes = bytes * elements}, work);
  }

  struct Test {
    std::string what;
    std::vector<Bound> bounds;
    Work work;
  };
  struct TimedRow {
    Row row;
    Work work;
  };
  const std::vector<Test>& tests() const { return tests_; }
  const std::vector<TimedRow>& rows() const { return rows_; }

 private:
  std::vector<Test> tests_;
  std::vector<TimedRow> rows_;
};

namespace cases {
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

#define LOCKSTEP_OPERATOR(name, ...) void name(Cases& cases);
#include "lockstep/core/operators.def"
}  // namespace cases

struct OperatorCases {
  const char* name;
  void (*add)(Cases&);
};

// All operators, in the list's order.
inline constexpr OperatorCases kOperators[] = {
#define LOCKSTEP_OPERATOR(name, ...) {#name, cases::name},
#include "lockstep/core/operators.def"
};

}  // namespace lockstep::testing
