// Packed products, those of few rows, and the dispatcher's choice, for random sizes next to the boundaries of lanes,
// tiles and blocks. Sums of whole numbers are exact. Operands and results end at pages without access. Rows of the
// result are further apart than they are long, and the gaps keep their values.
#include "kernels/cpu/products/packed_product.h"
#include "kernels/cpu/products/vector_product.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <random>

#include "src/core/process/compute_threads.h"
#include "tests/kernels/cpu/exact.h"
#include "tests/kernels/cpu/matrix_case.h"
#include "tests/kernels/guarded_memory.h"

namespace lockstep::testing {
namespace {

constexpr float kNoValue = std::numeric_limits<float>::quiet_NaN();
constexpr float kInGap = 77;

// Sizes of vectors, of tiles, and of the blocks of packed_product.inc, and their neighbours.
constexpr std::array kSizes = {1,   2,   3,   4,   5,   6,   7,   8,   9,   11,   12,   13,   15,   16,   17,
                               24,  25,  31,  32,  33,  63,  64,  65,  119, 120,  121,  127,  128,  129,  191,
                               192, 193, 255, 257, 383, 384, 385, 767, 769, 1023, 1024, 1025, 2047, 2048, 2049};

std::vector<MatrixCase> packed_cases() {
  std::mt19937 random(7);
  std::vector<MatrixCase> all;
  const auto add = [&](Index rows, Index columns, Index inner) {
    const auto flags = static_cast<unsigned>(random());
    const bool accumulate = (flags & 4U) != 0;
    all.push_back({rows, columns, inner, (flags & 1U) != 0, (flags & 2U) != 0, accumulate,
                   !accumulate && (flags & 8U) != 0, (flags & 16U) != 0});
  };
  const auto size = [&] { return Index{kSizes[random() % kSizes.size()]}; };
  while (all.size() < 250) {
    const Index rows = size(), columns = size(), inner = size();
    if (rows * columns * inner <= 1'500'000) add(rows, columns, inner);
  }
  // More than one block in each direction.
  for (const auto& [rows, columns, inner] : std::vector<std::array<Index, 3>>{{121, 2049, 5},
                                                                              {241, 2100, 3},
                                                                              {121, 2051, 17},
                                                                              {5, 130, 1025},
                                                                              {130, 20, 2049},
                                                                              {3, 2049, 385},
                                                                              {125, 70, 769}})
    for (int i = 0; i < 4; ++i) add(rows, columns, inner);
  return all;
}

// The result of work(product) for a case, with guards around everything. 16-bit floats are exact, too: the numbers are
// small.
template <typename Work>
void expect_exact(const MatrixCase& c, const std::string& who, const Work& work, DType type = DType::kFloat32) {
  const Floats a = whole_numbers(c.a_count(), 1), b = whole_numbers(c.b_count(), 2), bias = whole_numbers(c.columns, 3);
  Floats before = whole_numbers(c.c_count(), 4);
  for (Index i = 0; i < c.c_count(); ++i)
    if (i % c.c_step() >= c.columns)
      before[i] = kInGap;
    else if (!c.accumulate)
      before[i] = kNoValue;
  const ExactProduct exact = exact_product(c, a, b, bias, before);
  Floats expected = before;
  for (Index row = 0; row < c.rows; ++row)
    std::copy_n(exact.values.begin() + row * c.columns, c.columns, expected.begin() + row * c.c_step());
  const GuardedFloats own_a(a), own_b(b), own_bias(bias), result(before);
  Product product = c.product(own_a.data(), own_b.data(), own_bias.data(), result.data());
  if (type == DType::kFloat32) {
    work(product);
  } else {
    const GuardedHalves half_a(type, a), half_b(type, b);
    product.a.data = half_a.data(), product.b.data = half_b.data(), product.a.type = product.b.type = type;
    work(product);
  }
  expect_same_bits(result.copy(), expected, fmt::format("{}: {}", who, c.name()));
}

TEST(PackedProduct, OfRandomSizesIsExact) {
  for (const MatrixCase& c : packed_cases())
    for (const bool turned : {false, true}) {
      expect_exact(c, turned ? "turned" : "packed",
                   [&](const Product& p) { packed_product::multiply_alone(p, turned); });
      if (HasFatalFailure()) return;
    }
}

TEST(PackedProduct, WidensWhatItPacks) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16})
    for (const MatrixCase& c : packed_cases())
      for (const bool turned : {false, true}) {
        expect_exact(
            c, turned ? "turned" : "packed", [&](const Product& p) { packed_product::multiply_alone(p, turned); },
            type);
        if (HasFatalFailure()) return;
      }
}

TEST(VectorProduct, OfRandomSizesIsExact) {
  std::mt19937 random(5);
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (int i = 0; i < 250; ++i) {
      const auto size = [&] { return Index{kSizes[random() % kSizes.size()]}; };
      const auto flags = static_cast<unsigned>(random());
      const bool accumulate = (flags & 4U) != 0;
      const MatrixCase c{1 + i % 4,
                         size(),
                         size(),
                         (flags & 1U) != 0,
                         (flags & 2U) != 0,
                         accumulate,
                         !accumulate && (flags & 8U) != 0,
                         (flags & 16U) != 0};
      expect_exact(
          c, "of few rows", [](const Product& p) { vector_product::multiply_alone(p); }, type);
      if (HasFatalFailure()) return;
    }
}

// Threads share the columns.
TEST(VectorProduct, AColumnDoesNotDependOnItsNeighbours) {
  const Index columns = 1100, inner = 77;
  for (const Index rows : {1, 2, 3, 4})
    for (const bool transpose_b : {false, true}) {
      const MatrixCase c{rows, columns, inner, false, transpose_b, false, false, false};
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      Floats a(c.a_count()), b(c.b_count()), together(c.c_count(), 0), alone(c.c_count(), 0);
      for (Floats* const each : {&a, &b})
        for (float& value : *each) value = normal(random);
      vector_product::multiply_alone(c.product(a.data(), b.data(), nullptr, together.data()));
      for (Index first = 0, count = 1; first < columns; first += count, count = count % 90 + 1) {
        Product part = c.product(a.data(), b.data(), nullptr, alone.data());
        part.columns = std::min(count, columns - first), part.b = part.b.from(0, first), part.c += first;
        vector_product::multiply_alone(part);
      }
      expect_same_bits(alone, together, c.name());
    }
}

// All terms are positive: a sum of one after the other in float32 would be 1 % too large.
TEST(VectorProduct, LongSumsStayExact) {
  const Index inner = 1'000'000, columns = 17;
  const Floats a(inner, 0.1F), b(inner * columns, 1.0F);
  for (const bool transpose_b : {false, true}) {
    Floats result(columns);
    vector_product::multiply_alone({.rows = 1,
                                    .columns = columns,
                                    .inner = inner,
                                    .a = as_stored(a.data(), inner),
                                    .b = transpose_b ? transposed(b.data(), inner) : as_stored(b.data(), columns),
                                    .c = result.data(),
                                    .c_step = columns});
    for (const float value : result) EXPECT_NEAR(value, 1e5, 5) << transpose_b;
  }
}

TEST(VectorProduct, IsForFewRowsOfSomeLength) {
  const auto suits = [](Index rows, Index columns, Index inner) {
    return vector_product::suits({.rows = rows, .columns = columns, .inner = inner, .a = {}, .b = {}});
  };
  EXPECT_TRUE(suits(1, 16, 16));
  EXPECT_TRUE(suits(4, 16, 16));
  EXPECT_FALSE(suits(5, 16, 16));
  EXPECT_FALSE(suits(1, 15, 16));
  EXPECT_FALSE(suits(1, 16, 15));
}

// NaN and infinity reach their results alone, also in the last elements of sums and of rows.
TEST(VectorProduct, IsNotFiniteWhereItsOperandsAreNot) {
  for (const Index rows : {2, 3, 4})
    for (const bool transpose_b : {false, true}) {
      const MatrixCase c{rows, 70, 390, false, transpose_b, false, true, true};
      Floats a = whole_numbers(c.a_count(), 1), b = whole_numbers(c.b_count(), 2), result(c.c_count(), kInGap);
      const Floats bias = whole_numbers(c.columns, 3);
      const Index last = c.columns - 1;
      a[c.inner - 1] = 1;
      a[(rows - 1) * (c.inner + MatrixCase::kGap) + c.inner - 1] = kNoValue;
      const_cast<float&>(*c.b(b.data()).from(c.inner - 1, last).floats()) = std::numeric_limits<float>::infinity();
      vector_product::multiply_alone(c.product(a.data(), b.data(), bias.data(), result.data()));
      for (Index column = 0; column < c.columns; ++column) {
        ASSERT_TRUE(std::isnan(result[(rows - 1) * c.c_step() + column])) << c.name() << ": " << column;
        ASSERT_EQ(std::isinf(result[column]), column == last) << c.name() << ": " << column;
        ASSERT_FALSE(std::isnan(result[column])) << c.name() << ": " << column;
      }
    }
}

TEST(Product, OfRandomSizesIsExact) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const MatrixCase& c : packed_cases()) {
      expect_exact(
          c, "chosen", [](const Product& p) { multiply(p); }, type);
      if (HasFatalFailure()) return;
    }
}

// Results that no 16-bit float has, parts by rows and by columns, added to present values.
TEST(Product, RoundsSixteenBitResultsOnce) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16})
    for (const auto& [rows, columns, inner] : std::vector<std::array<Index, 3>>{{3, 5, 7},
                                                                                {130, 70, 390},
                                                                                {1000, 700, 96},
                                                                                {100, 5000, 80},
                                                                                {700, 1, 70},
                                                                                {1, 700, 70},
                                                                                {70, 90, 1},
                                                                                {2, 5000, 300}})
      for (int options = 0; options < 4; ++options) {
        const bool accumulate = options == 1, has_end = options == 2, alone = options == 3;
        const std::string name = fmt::format("{}: {} x {} x {}, {}", name_of(type), rows, columns, inner, options);
        const Floats a = whole_numbers(rows * inner, 1), b = whole_numbers(inner * columns, 2),
                     bias = whole_numbers(columns, 3);
        Floats expected = whole_numbers(rows * columns, 4);
        const GuardedHalves half_a(type, a), half_b(type, b), result(type, expected);
        const Product floats = {.rows = rows,
                                .columns = columns,
                                .inner = inner,
                                .a = as_stored(a.data(), inner),
                                .b = as_stored(b.data(), columns),
                                .bias = has_end ? bias.data() : nullptr,
                                .relu = has_end};
        Product halves = floats;
        halves.a = {half_a.data(), inner, 1, type}, halves.b = {half_b.data(), columns, 1, type};
        const Shape shape = {rows, columns};
        multiply_into({expected.data(), shape, accumulate}, floats);
        (alone ? multiply_alone_into : multiply_into)({result.data(), type, shape, accumulate}, halves);
        const GuardedHalves rounded(type, expected);
        ASSERT_EQ(std::memcmp(result.data(), rounded.data(), expected.size() * 2), 0) << name;
      }
}

TEST(PackedProduct, IsTurnedForFewRowsAndATransposedMatrix) {
  const auto is_turned = [](Index rows, Index columns, bool transpose_b) {
    const MatrixCase c{rows, columns, 8, false, transpose_b, false, false, false};
    const Floats a(c.a_count()), b(c.b_count());
    return packed_product::is_turned(c.product(a.data(), b.data(), nullptr, nullptr));
  };
  EXPECT_TRUE(is_turned(5, 9, true));
  EXPECT_TRUE(is_turned(192, 193, true));
  EXPECT_FALSE(is_turned(193, 400, true));
  EXPECT_FALSE(is_turned(9, 9, true));
  EXPECT_FALSE(is_turned(5, 9, false));
}

// NaN is in one row of a; bias and ReLU follow.
TEST(PackedProduct, LetsNanThroughRelu) {
  for (const auto& [rows, columns, inner] :
       std::vector<std::array<Index, 3>>{{7, 9, 5}, {13, 70, 390}, {130, 33, 1030}})
    for (const bool turned : {false, true}) {
      const MatrixCase c{rows, columns, inner, false, true, false, true, true};
      Floats a = whole_numbers(c.a_count(), 1), result(c.c_count(), kInGap);
      const Floats b = whole_numbers(c.b_count(), 2), bias = whole_numbers(columns, 3);
      const Index broken = rows / 2;
      a[broken * (inner + MatrixCase::kGap) + inner - 1] = kNoValue;
      packed_product::multiply_alone(c.product(a.data(), b.data(), bias.data(), result.data()), turned);
      for (Index row = 0; row < rows; ++row)
        for (Index column = 0; column < columns; ++column) {
          const float value = result[row * c.c_step() + column];
          ASSERT_EQ(std::isnan(value), row == broken) << c.name() << ": " << row << ", " << column;
          ASSERT_FALSE(value < 0) << c.name() << ": " << row << ", " << column;
        }
    }
}

// Random floats, by each of the candidates that this machine has; some parts are cut by rows, others by columns.
TEST(ProductThreads, ChangeNoBit) {
  set_compute_threads(3);
  if (compute_threads() != 3) GTEST_SKIP() << "OMP_NUM_THREADS is set";
  for (const auto& [rows, columns, inner] : std::vector<std::array<Index, 3>>{{1000, 60, 300},
                                                                              {30, 2000, 300},
                                                                              {150, 1030, 400},
                                                                              {500, 530, 90},
                                                                              {2000, 3, 3000},
                                                                              {400, 300, 161},
                                                                              {1, 5000, 2000},
                                                                              {4, 2000, 1030}})
    for (int transposed = 0; transposed < 4; ++transposed) {
      const MatrixCase c{rows, columns, inner, (transposed & 1) != 0, (transposed & 2) != 0, false, true, false};
      const Floats a = uniform(c.a_count(), 1), b = uniform(c.b_count(), 2), bias = uniform(columns, 3);
      const auto run = [&](int threads) {
        Floats result(c.c_count(), kInGap);
        set_compute_threads(threads);
        multiply(c.product(a.data(), b.data(), bias.data(), result.data()));
        return result;
      };
      const Floats alone = run(1);
      for (const int threads : {2, 3, 5})
        expect_same_bits(run(threads), alone, fmt::format("{}, {} threads", c.name(), threads));
    }
  set_compute_threads(0);
}

}  // namespace
}  // namespace lockstep::testing
