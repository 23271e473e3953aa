// Running sums and sorted lines.
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cpu/reference/reference.h"
#include "kernels/order_bits.h"

namespace lockstep::reference {

namespace {

void cumsum(bool reversed, In x, Out y, Stream&) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  for (Index o = 0; o < outer; ++o)
    for (Index c = 0; c < inner; ++c) {
      double sum = 0;
      for (Index i = 0; i < n; ++i) {
        const Index at = (o * n + (reversed ? n - 1 - i : i)) * inner + c;
        sum += x.floats()[at];
        store(y.floats()[at], sum, y.accumulate);
      }
    }
}

void sort(bool descending, In x, Out values, Out indices, Stream&) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2], kept = values.shape[1];
  std::vector<Index> places(static_cast<std::size_t>(n));
  for (Index o = 0; o < outer; ++o)
    for (Index c = 0; c < inner; ++c) {
      const float* const line = x.floats() + o * n * inner + c;
      std::iota(places.begin(), places.end(), 0);
      std::stable_sort(places.begin(), places.end(), [&](Index a, Index b) {
        return order_bits(line[a * inner], descending) < order_bits(line[b * inner], descending);
      });
      for (Index i = 0; i < kept; ++i) {
        const Index at = (o * kept + i) * inner + c;
        values.floats()[at] = line[places[static_cast<std::size_t>(i)] * inner];
        indices.as<std::int64_t>()[at] = places[static_cast<std::size_t>(i)];
      }
    }
}

}  // namespace

void use_ordered(KernelTable& table) {
  table.cumsum = any_float<cumsum>;
  table.sort = any_float<sort>;
}

}  // namespace lockstep::reference
