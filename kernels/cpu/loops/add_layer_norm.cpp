// A sum and its layer norm, a block of rows at a time, so that the sum is in a cache when it is normalised.
#include <algorithm>

#include "kernels/cpu/cpu_table.h"
#include "lockstep/core/device.h"

namespace lockstep {

namespace {

using Index = std::int64_t;

constexpr Index kBlockBytes = 16 << 10;  // half of a first-level cache

// Rows [first, first + rows) of a matrix, or elements of a vector; nothing of an operand that is left out.
template <typename View> View rows_from(const View& view, Index first, Index rows) {
  if (!view) return view;
  View part = view;
  const Index row = view.shape.dims() == 2 ? view.shape[1] : 1;
  part.shape = view.shape.dims() == 2 ? Shape{rows, row} : Shape{rows};
  const std::size_t offset = static_cast<std::size_t>(first * row) * size_of(view.dtype);
  part.data = const_cast<std::byte*>(static_cast<const std::byte*>(view.data) + offset);
  return part;
}

void add_layer_norm(In a, In b, In weight, In bias, float epsilon, Out sum, Out y, Out mean, Out rstd, Stream& stream) {
  const KernelTable& kernels = cpu_device().kernels();
  const Index rows = a.shape[0], row_bytes = a.shape[1] * static_cast<Index>(size_of(a.dtype));
  const Index block = std::max<Index>(1, kBlockBytes / std::max<Index>(1, row_bytes));
  for (Index first = 0; first < rows; first += block) {
    const Index count = std::min(block, rows - first);
    const OutputView part = rows_from(OutputView(sum), first, count);
    kernels.add(rows_from(InputView(a), first, count), rows_from(InputView(b), first, count), part, stream);
    kernels.layer_norm(part, weight, bias, epsilon, rows_from(OutputView(y), first, count),
                       rows_from(OutputView(mean), first, count), rows_from(OutputView(rstd), first, count), stream);
  }
}

}  // namespace

void use_add_layer_norm(KernelTable& table) { table.add_layer_norm = add_layer_norm; }

}  // namespace lockstep
