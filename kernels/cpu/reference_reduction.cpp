// Sums over any dimensions, and maxima with their positions.
#include <cmath>
#include <vector>

#include "kernels/cpu/reference.h"
#include "kernels/strided_loop.h"

namespace lockstep::reference {

namespace {

void sum(In x, float factor, Out y, Stream&) {
  std::vector<double> sums(static_cast<std::size_t>(y.count()));
  const float* from = x.floats();
  const StridedLoop<1> loop(x.shape, {broadcast_strides(y.shape, x.shape)});
  for_each_outer(loop, 0, [&](const auto& at) { sums[static_cast<std::size_t>(at[0])] += *from++; });
  for (Index i = 0; i < y.count(); ++i) store(y.floats()[i], sums[static_cast<std::size_t>(i)] * factor, y.accumulate);
}

void max(In x, Out values, Out indices, Stream&) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  float* value = values.floats();
  auto* place = indices.as<std::int64_t>();
  for (Index o = 0; o < outer; ++o)
    for (Index c = 0; c < inner; ++c, ++value, ++place) {
      const float* const line = x.floats() + o * n * inner + c;
      *place = 0;
      for (Index i = 1; i < n; ++i) {
        const float best = line[*place * inner], next = line[i * inner];
        if (next > best || (std::isnan(next) && !std::isnan(best))) *place = i;
      }
      *value = line[*place * inner];
    }
}

}  // namespace

void use_reduction(KernelTable& table) {
  table.sum = any_float<sum>;
  table.max = any_float<max>;
}

}  // namespace lockstep::reference
