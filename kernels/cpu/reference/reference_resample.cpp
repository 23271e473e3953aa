// Images of another size: y = sum over the taps of both directions of weight * weight * x.
#include <vector>

#include "kernels/cpu/reference/reference.h"
#include "kernels/resample_rule.h"

namespace lockstep::reference {

namespace {

// Calls visit(pixel of the output, pixel of the input, weight) for each tap.
template <typename Visit> void for_each_resampled(const Resample2dShape& s, Visit&& visit) {
  const ResampleAxis rows = rows_of(s), columns = columns_of(s);
  Index out = 0;
  for (Index n = 0; n < s.batch; ++n)
    for (Index i = 0; i < s.out_height; ++i)
      for (Index j = 0; j < s.out_width; ++j, ++out) {
        const ResampleTaps down = rows.taps_of(i), across = columns.taps_of(j);
        for (Index row = down.begin; row < down.end; ++row)
          for (Index column = across.begin; column < across.end; ++column)
            visit(out, (n * s.in_height + row) * s.in_width + column,
                  double{down.weight_of(row)} * across.weight_of(column));
      }
}

void resample2d(const Resample2dShape& s, In x, Out y, Stream&) {
  std::vector<double> sums(static_cast<std::size_t>(y.count()));
  for_each_resampled(s, [&](Index out, Index in, double weight) {
    for (Index c = 0; c < s.channels; ++c)
      sums[static_cast<std::size_t>(out * s.channels + c)] += weight * x.floats()[in * s.channels + c];
  });
  for (std::size_t i = 0; i < sums.size(); ++i) y.floats()[i] = static_cast<float>(sums[i]);
}

void resample2d_backward(const Resample2dShape& s, In y_grad, Out x_grad, Stream&) {
  std::vector<double> sums(static_cast<std::size_t>(x_grad.count()));
  for_each_resampled(s, [&](Index out, Index in, double weight) {
    for (Index c = 0; c < s.channels; ++c)
      sums[static_cast<std::size_t>(in * s.channels + c)] += weight * y_grad.floats()[out * s.channels + c];
  });
  for (std::size_t i = 0; i < sums.size(); ++i) store(x_grad.floats()[i], sums[i], x_grad.accumulate);
}

}  // namespace

void use_resample(KernelTable& table) {
  table.resample2d = any_float<resample2d>;
  table.resample2d_backward = any_float<resample2d_backward>;
}

}  // namespace lockstep::reference
