// The kernels of comm hooks (reduce/compression_kernels.h): odd sizes, equal values, NaN and infinity.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/reduce/compression_kernels.h"
#include "tests/kernels/reference_comparison.h"

namespace lockstep::testing {
namespace {

using hooks::Int8Kernels, hooks::Int8Slices, hooks::PowerSgdKernels, hooks::PowerSgdMatrix, hooks::TopKKernels,
    hooks::TopKPart;

static_assert(sizeof(Int8Kernels) == 3 * sizeof(void*) && sizeof(PowerSgdKernels) == 5 * sizeof(void*) &&
                  sizeof(TopKKernels) == 2 * sizeof(void*),
              "a new entry needs a comparison here");

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

struct PartSize {
  Index count, kept;
};

class CompressionAgainstReference : public ReferenceComparison {
 protected:
  void compare_int8(const std::string& what, const Int8Slices& of, const Floats& values);
  void compare_top_k(const std::string& what, const std::vector<PartSize>& sizes, bool has_error,
                     const std::function<Floats(Index)>& values_of);
};
LOCKSTEP_COMPARE_WITH_REFERENCE(CompressionAgainstReference);

// -- int8

Int8Slices slices_of(Index ranks, Index block, Index count) {
  const Index blocks = (count + block - 1) / block;
  return {ranks, (blocks + ranks - 1) / ranks, block, count};
}

void CompressionAgainstReference::compare_int8(const std::string& what, const Int8Slices& of, const Floats& values) {
  compare(what, {kExact}, [=](Bench& b) {
    const auto bytes = [&](const Int8Slices& slices) {
      return reinterpret_cast<std::byte*>(
          b.plain_out(std::vector<std::uint8_t>(static_cast<std::size_t>(slices.slices * slices.slice_bytes()), 0xEE)));
    };
    const Int8Slices own{1, of.slice_blocks, of.block, of.slice_values()};
    const float* const in = b.plain_in(values);
    std::byte *const quantised = bytes(of), *const again = bytes(own);
    float* const expanded = b.plain_out(Floats(static_cast<std::size_t>(of.count), 7));
    float* const average = b.plain_out(Floats(static_cast<std::size_t>(of.slice_values()), 7));
    return [=, &b] {
      const auto& kernels = b.kernels.families.get<Int8Kernels>();
      kernels.quantise(of, in, quantised, b.stream());
      kernels.expand(of, quantised, expanded, b.stream());
      kernels.average(of, quantised, average, b.stream());
      kernels.quantise(own, average, again, b.stream());
    };
  });
}

TEST_P(CompressionAgainstReference, Int8) {
  for (const Index ranks : {1, 2, 3, 8})
    for (const Index block : {16, 48, 256})
      for (const Index count : {0, 1, 15, 16, 17, 255, 256, 257, 4097})
        compare_int8(fmt::format("{} values in blocks of {}, {} ranks", count, block, ranks),
                     slices_of(ranks, block, count), uniform(count, static_cast<unsigned>(count)));
}

TEST_P(CompressionAgainstReference, Int8OfUnusualValues) {
  const Index block = 16;
  // One block for each kind: zeros of both signs, ties between two integers, numbers that are too small, infinity, NaN
  // next to zeros, the largest float.
  Floats values(6 * 16 + 3, 0);
  values[1] = -0.0F;
  for (int i = 0; i < 16; ++i) values[static_cast<std::size_t>(16 + i)] = i == 0 ? 127 : static_cast<float>(i) - 7.5F;
  for (int i = 0; i < 16; ++i) values[static_cast<std::size_t>(32 + i)] = std::ldexp(1.0F, -120 - i);
  values[48 + 5] = -kInfinity, values[48 + 6] = 3;
  values[64 + 2] = kNaN, values[64 + 3] = -1e-30F;
  values[80] = std::numeric_limits<float>::max(), values[81] = -values[80], values[82] = 1;
  values[96] = -5;
  for (const Index ranks : {1, 2, 7})
    compare_int8(fmt::format("unusual values, {} ranks", ranks),
                 slices_of(ranks, block, static_cast<Index>(values.size())), values);
}

// -- PowerSGD

const std::vector<PowerSgdMatrix>& matrices() {
  static const std::vector<PowerSgdMatrix> all = {{1, 1, 1},   {2, 5, 2},     {40, 12, 4}, {33, 65, 7},
                                                  {500, 3, 1}, {700, 31, 20}, {9, 600, 3}};
  return all;
}
std::string name_of(const PowerSgdMatrix& of) { return fmt::format("{} x {}, rank {}", of.rows, of.columns, of.rank); }

TEST_P(CompressionAgainstReference, PowerSgdRefill) {
  for (const PowerSgdMatrix& of : matrices())
    for (const bool all : {false, true})
      compare(name_of(of) + (all ? ", all" : ""), {kExact}, [&, of, all](Bench& b) {
        Floats values = uniform(of.rank * of.columns, 3);
        for (Index j = 0; j < of.rank; j += 2)  // zero, except for the last element of the third row
          for (Index i = 0; i < of.columns; ++i)
            values[static_cast<std::size_t>(j * of.columns + i)] = j == 2 && i + 1 == of.columns ? 1 : 0;
        float* const q = b.plain_out(values);
        return [=, &b] {
          b.kernels.families.get<PowerSgdKernels>().refill(of, {.seed = 5, .stream = 1ULL << 40}, all, q, b.stream());
        };
      });
}

TEST_P(CompressionAgainstReference, PowerSgdProducts) {
  for (const PowerSgdMatrix& of : matrices())
    compare(name_of(of), {kSums}, [&, of](Bench& b) {
      const float* const m = b.floats_in({of.rows * of.columns}, uniform(of.rows * of.columns, 1)).floats();
      const float* const q = b.floats_in({of.rank * of.columns}, uniform(of.rank * of.columns, 2)).floats();
      const float* const p = b.floats_in({of.rank * of.rows}, uniform(of.rank * of.rows, 3)).floats();
      float* const p_out =
          b.floats_out({of.rank * of.rows}, Floats(static_cast<std::size_t>(of.rank * of.rows), 9)).floats();
      float* const q_out =
          b.floats_out({of.rank * of.columns}, Floats(static_cast<std::size_t>(of.rank * of.columns), 9)).floats();
      return [=, &b] {
        const auto& kernels = b.kernels.families.get<PowerSgdKernels>();
        kernels.multiply(of, m, q, p_out, b.stream());
        kernels.multiply_transposed(of, m, p, q_out, b.stream());
      };
    });
}

TEST_P(CompressionAgainstReference, PowerSgdOrthonormalise) {
  const auto compare_rows = [this](const std::string& what, const PowerSgdMatrix& of, const Floats& rows) {
    compare(what, {{.absolute = 5e-5F}}, [=](Bench& b) {
      float* const p = b.plain_out(rows);
      std::int32_t* const is_finite = b.plain_out(std::vector<std::int32_t>{9});
      return [=, &b] { b.kernels.families.get<PowerSgdKernels>().orthonormalise(of, p, is_finite, b.stream()); };
    });
  };
  for (const PowerSgdMatrix& of : matrices()) compare_rows(name_of(of), of, uniform(of.rank * of.rows, 4));
  const PowerSgdMatrix of{100, 1, 5};
  Floats rows = uniform(500, 5);
  for (std::size_t i = 0; i < 100; ++i)
    rows[100 + i] = -2 * rows[i], rows[300 + i] = 0, rows[400 + i] = rows[i] + rows[200 + i];
  compare_rows("rows that depend on others, and a zero row", of, rows);
  for (const float odd : {kNaN, kInfinity}) {
    rows[499] = odd;
    compare_rows("NaN", of, rows);
  }
}

TEST_P(CompressionAgainstReference, PowerSgdExpand) {
  for (const PowerSgdMatrix& of : matrices())
    for (const bool is_finite : {true, false})
      for (const bool has_error : {true, false})
        compare(name_of(of), {kExact}, [&, of, is_finite, has_error](Bench& b) {
          const float* const p = b.plain_in(uniform(of.rank * of.rows, 6));
          const float* const q = b.plain_in(uniform(of.rank * of.columns, 7));
          const std::int32_t* const finite = b.plain_in(std::vector<std::int32_t>{is_finite ? 1 : 0});
          float* const m = b.plain_out(uniform(of.rows * of.columns, 8));
          float* const error = b.plain_out(Floats(static_cast<std::size_t>(of.rows * of.columns), 9));
          float* const kept = b.plain_out(Floats(static_cast<std::size_t>(of.rank * of.columns), 9));
          return [=, &b] {
            b.kernels.families.get<PowerSgdKernels>().expand(of, p, q, finite, m, has_error ? error : nullptr, kept,
                                                             b.stream());
          };
        });
}

// -- top-k

// Leaves gaps between the parts, as in buckets.
void CompressionAgainstReference::compare_top_k(const std::string& what, const std::vector<PartSize>& sizes,
                                                bool has_error, const std::function<Floats(Index)>& values_of) {
  Index end = 0, kept = 0;
  for (const PartSize& size : sizes) end += size.count + 3, kept += size.kept;
  compare(what, {kExact}, [=](Bench& b) {
    float* const values = b.plain_out(values_of(end));
    float* const errors = b.plain_out(has_error ? uniform(end, 77) : Floats{1});
    std::uint32_t* const places = b.plain_out(std::vector<std::uint32_t>(static_cast<std::size_t>(kept), 123));
    float* const chosen = b.plain_out(Floats(static_cast<std::size_t>(kept), 123));
    std::vector<TopKPart> parts;
    Index at = 0;
    for (const PartSize& size : sizes) {
      parts.push_back({at, size.count, size.kept, has_error ? errors + at : nullptr});
      at += size.count + 3;
    }
    return [=, &b] { b.kernels.families.get<TopKKernels>().select(parts, values, places, chosen, b.stream()); };
  });
}

const std::vector<PartSize>& part_sizes() {
  static const std::vector<PartSize> all = {{1, 1},       {2, 1},       {0, 0},     {3, 3},
                                            {255, 3},     {256, 256},   {257, 1},   {2047, 1000},
                                            {2049, 2048}, {16384, 164}, {16385, 1}, {40000, 400}};
  return all;
}

TEST_P(CompressionAgainstReference, TopKSelect) {
  for (const bool has_error : {false, true}) {
    compare_top_k("numbers", part_sizes(), has_error, [](Index count) { return uniform(count, 1); });
    compare_top_k("many equal ones", part_sizes(), has_error, [](Index count) { return whole_numbers(count, 2); });
    compare_top_k("zeros", part_sizes(), has_error,
                  [](Index count) { return Floats(static_cast<std::size_t>(count), 0); });
    compare_top_k("NaN", part_sizes(), has_error, [](Index count) {
      Floats values = uniform(count, 3);
      for (std::size_t i = 0; i < values.size(); i += 97)
        values[i] = i % 2 == 0 ? kNaN : i % 3 == 0 ? kInfinity : -kInfinity;
      return values;
    });
  }
  // More parts than fit into the arguments of one kernel.
  std::vector<PartSize> many;
  for (Index i = 0; i < 203; ++i) many.push_back({i % 5 + 1, i % 5 == 4 ? 2 : 1});
  compare_top_k("many parts", many, true, [](Index count) { return whole_numbers(count, 4); });
  compare_top_k("no parts", {}, false, [](Index) { return Floats{1}; });
}

TEST_P(CompressionAgainstReference, TopKExpand) {
  const Index kept = 300, count = 1000;
  for (const Index ranks : {1, 3, 8})
    compare(fmt::format("{} ranks", ranks), {kExact}, [=](Bench& b) {
      std::vector<std::uint32_t> messages;
      for (Index rank = 0; rank < ranks; ++rank) {
        for (Index k = 0; k < kept; ++k) messages.push_back(static_cast<std::uint32_t>((k * 3 + rank) % count));
        for (const float value : uniform(kept, static_cast<unsigned>(rank)))
          messages.push_back(std::bit_cast<std::uint32_t>(value));
      }
      const std::uint32_t* const in = b.plain_in(messages);
      float *const out = b.plain_out(Floats(static_cast<std::size_t>(count), 9)), *const empty =
                                                                                      b.plain_out(Floats(5, 9));
      return [=, &b] {
        const auto& kernels = b.kernels.families.get<TopKKernels>();
        kernels.expand({ranks, kept, count}, reinterpret_cast<const std::byte*>(in), out, b.stream());
        kernels.expand({ranks, 0, 5}, reinterpret_cast<const std::byte*>(in), empty, b.stream());
      };
    });
}

}  // namespace
}  // namespace lockstep::testing
