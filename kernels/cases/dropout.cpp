#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"

namespace lockstep::testing::cases {

namespace {

Work drop(Index count, const DropoutParams& params, bool accumulate) {
  return [=](Bench& b) {
    const InputView x = b.in({count}, uniform(count, 1));
    const OutputView y = b.out({count}, uniform(count, 2), accumulate);
    return [=, &b] { b.kernels.dropout(params, x, y, b.stream()); };
  };
}

}  // namespace

void dropout(Cases& cases) {
  constexpr std::uint64_t kSeed = 0x123456789abcdef0, kStream = 0x50000000deadbeef;
  for (const Index count : kCounts)
    for (const std::int64_t first : {Index{0}, Index{3}, (Index{1} << 34) + 6})
      for (const bool accumulate : {false, true})
        cases.test(fmt::format("{} elements from {} on, {}", count, first, accumulate), {kExact},
                   drop(count, {0.3F, kSeed, kStream, first}, accumulate));
  // Rows that begin anywhere in a block of random words, with other ranks' numbers between them.
  for (const Index row : {1, 3, 8, 37, 68, 600})
    for (const std::int64_t skipped : {Index{1}, 3 * row, (Index{1} << 33) + 5})
      for (const bool accumulate : {false, true})
        cases.test(fmt::format("7 rows of {} elements, {} numbers between them, {}", row, skipped, accumulate),
                   {kExact}, drop(7 * row, {0.3F, kSeed, kStream, 3, row, skipped}, accumulate));
  cases.large_row("dropout", 2 * cases.element_bytes(), drop(cases.sizes.elements, {0.1F, kSeed, kStream, 0}, false));
}

}  // namespace lockstep::testing::cases
