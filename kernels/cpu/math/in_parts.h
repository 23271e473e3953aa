// Runs kernels written for float32 on 16-bit floats, one part of the work after the other: each part is widened into
// the first-level cache, and its results are rounded once. Whole operands are widened only if every part needs them.
//
//   table.relu = in_parts<relu, Cut::kElements, Cut::kElements>;  // one for each argument but the stream
#pragma once

#include <algorithm>
#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cpu/math/cut_arguments.h"

namespace lockstep {

namespace parts {

// The number of units, if it follows from the argument, else -1.
template <typename T> Index units_in(const T&, Cut) { return -1; }
template <> inline Index units_in(const InputView& view, Cut cut) {
  if (!is_cut(cut)) return -1;
  if (view.count() == 0) return 0;
  return is_by_rows(cut) ? view.count() / view.shape[-1] : cut == Cut::kFirst ? view.shape[0] : view.count();
}
template <> inline Index units_in(const Pool2dShape& shape, Cut) { return shape.batch; }
template <> inline Index units_in(const Conv2dShape& shape, Cut) { return shape.batch; }
template <> inline Index units_in(const Resample2dShape& shape, Cut) { return shape.batch; }
template <> inline Index units_in(const LrnParams& params, Cut) { return params.rows; }
template <> inline Index units_in(const OutputView& view, Cut cut) {
  return units_in(static_cast<InputView>(view), cut);
}
template <typename T> Index elements_in(const T&) { return 0; }
template <> inline Index elements_in(const InputView& view) { return view.count(); }
template <> inline Index elements_in(const OutputView& view) { return view.count(); }

}  // namespace parts

// Runs a kernel in parts of about `elements` elements of its largest operand. One cut for each argument; the last
// argument is the stream.
template <typename... Arguments> void run_in_parts(void (*kernel)(Arguments...),
                                                   std::array<Cut, sizeof...(Arguments)> cuts, std::int64_t elements,
                                                   std::type_identity_t<Arguments>... arguments) {
  using parts::Index;
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    Index units = -1, most = 0;
    ((units = units < 0 ? parts::units_in(arguments, cuts[i]) : units), ...);
    ((most = std::max(most, parts::is_cut(cuts[i]) ? parts::elements_in(arguments) : 0)), ...);
    const bool is_empty = units == 0 || most == 0;
    if (is_empty) cuts.fill(Cut::kWhole);
    const Index step = is_empty ? std::max<Index>(1, units) : std::max<Index>(1, elements * units / most);
    std::tuple<parts::Argument<Arguments>...> all{parts::Argument<Arguments>(arguments, cuts[i])...};
    Index begin = 0;
    do {  // once without units, because an empty sum is 0
      const parts::Part part{begin, std::min(step, units - begin), units};
      begin += step;
      kernel(std::get<i>(all).of(part)...);
      (std::get<i>(all).finish_part(begin >= units), ...);
    } while (begin < units);
  }
  (std::index_sequence_for<Arguments...>());
}

template <auto kernel, Cut... cuts> struct InParts;
template <typename... Arguments, void (*kernel)(Arguments...), Cut... cuts> struct InParts<kernel, cuts...> {
  // Sums of parts are added to each other in float32: the longer the parts, the smaller the error.
  static constexpr std::int64_t kElements = ((cuts == Cut::kSum) || ...) ? 16384 : 2048;

  static void call(Arguments... arguments) {
    if (!(Widened<Arguments>::is_half(arguments) || ...)) return kernel(arguments...);
    run_in_parts(kernel, {cuts..., Cut::kWhole}, kElements, arguments...);
  }
};

template <auto kernel, Cut... cuts> inline constexpr auto in_parts = &InParts<kernel, cuts...>::call;

}  // namespace lockstep
