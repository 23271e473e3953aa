// Runs kernels written for float32 on 16-bit floats, one part of the work after the other: each part is widened into
// the first-level cache, and its results are rounded once. Whole operands are widened only if every part needs them.
//
//   table.relu = in_parts<relu, Cut::kElements, Cut::kElements>;  // one for each argument but the stream
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cpu/math/any_float.h"
#include "lockstep/core/operator_shapes.h"

namespace lockstep {

// The share of an argument that a part of the work uses. The work has as many units as the first argument that is cut
// has elements, rows of its last dimension, or indices of its first dimension.
enum class Cut {
  kWhole,
  kElements,
  kRows,
  kFirst,
  kElementsInPlace,  // an output whose present values are read
  kRowsInPlace,
  kSum,  // an output to which every part adds
};

namespace parts {

using Index = std::int64_t;

struct Part {
  Index begin, count, units;  // units of this part, and of the work
};

constexpr bool is_cut(Cut cut) { return cut != Cut::kWhole && cut != Cut::kSum; }
constexpr bool is_in_place(Cut cut) { return cut == Cut::kElementsInPlace || cut == Cut::kRowsInPlace; }
constexpr bool is_by_rows(Cut cut) { return cut == Cut::kRows || cut == Cut::kRowsInPlace; }

// Kernels that know the sizes from another argument may have views of any shape.
inline Shape shape_of(const Shape& whole, Cut cut, const Part& part) {
  if (is_by_rows(cut) && whole[-1] > 0 && whole.count() / whole[-1] == part.units) return {part.count, whole[-1]};
  if (cut != Cut::kFirst || whole[0] != part.units) return {whole.count() / part.units * part.count};
  std::array<Index, Shape::kMaxDims> extents{};
  std::copy(whole.extents().begin(), whole.extents().end(), extents.begin());
  extents[0] = part.count;
  return Shape(std::span(extents).first(whole.dims()));
}

// Other arguments: the same for all parts, except for those that say how many units there are, or number them.
template <typename T> T of_part(const T& argument, const Part&) { return argument; }
inline LrnParams of_part(LrnParams params, const Part& part) {
  params.rows = part.count;
  return params;
}
inline Pool2dShape of_part(Pool2dShape shape, const Part& part) {
  shape.batch = part.count;
  return shape;
}
inline Conv2dShape of_part(Conv2dShape shape, const Part& part) {
  shape.batch = part.count;
  return shape;
}
inline DropoutParams of_part(DropoutParams params, const Part& part) {
  const bool has_rows = params.row_elements > 0;
  params.first_element += part.begin * (has_rows ? params.row_elements + params.skipped : 1);
  return params;
}

// An argument of the kernel, for one part after the other.
template <typename T> class Argument {
 public:
  Argument(T argument, Cut) : argument_(argument), part_(argument) {}
  T of(const Part& part) {
    part_ = of_part(argument_, part);
    return part_;
  }
  void finish_part(bool) {}

 private:
  std::decay_t<T> argument_, part_;
};

// The part's elements of a view.
template <typename View> View elements_of(const View& whole, Cut cut, const Part& part) {
  View view = whole;
  if (!is_cut(cut) || !whole) return view;
  const Index first = whole.count() / part.units * part.begin;
  using Byte = std::conditional_t<std::is_same_v<View, InputView>, const std::byte, std::byte>;
  view.data = static_cast<Byte*>(whole.data) + first * static_cast<Index>(size_of(whole.dtype));
  view.shape = shape_of(whole.shape, cut, part);
  return view;
}

// Memory for the float32 copies of one operand's parts.
class PartMemory {
 public:
  float* floats(Index count) {
    if (count > count_) memory_ = cpu_device().allocate(static_cast<std::size_t>(count) * sizeof(float));
    count_ = std::max(count, count_);
    return reinterpret_cast<float*>(memory_.data());
  }

 private:
  Buffer memory_;
  Index count_ = 0;
};

template <> class Argument<In> {
 public:
  Argument(In view, Cut cut) : whole_(view), cut_(cut) {}
  In of(const Part& part) {
    if (!is_cut(cut_) && part.begin > 0) return part_;
    part_ = elements_of(whole_, cut_, part);
    if (!whole_ || !is_half(whole_.dtype)) return part_;
    float* const floats = memory_.floats(part_.count());
    widen(part_.dtype, part_.data, floats, part_.count());
    part_ = InputView(floats, part_.shape);
    return part_;
  }
  void finish_part(bool) {}

 private:
  InputView whole_, part_;
  Cut cut_;
  PartMemory memory_;
};

template <> class Argument<Out> {
 public:
  Argument(Out view, Cut cut) : whole_(view), cut_(cut) {}
  Out of(const Part& part) {
    if (!is_cut(cut_) && part.begin > 0) {
      part_.accumulate = true;
      return part_;
    }
    part_ = rounded_ = elements_of(whole_, cut_, part);
    if (!whole_ || !is_half(whole_.dtype)) return part_;
    float* const floats = memory_.floats(part_.count());
    if (whole_.accumulate || is_in_place(cut_)) widen(rounded_.dtype, rounded_.data, floats, rounded_.count());
    part_ = OutputView(floats, rounded_.shape, whole_.accumulate);
    return part_;
  }
  void finish_part(bool is_last) {
    if (whole_ && is_half(whole_.dtype) && (is_cut(cut_) || is_last))
      narrow(rounded_.dtype, part_.floats(), rounded_.data, rounded_.count());
  }

 private:
  OutputView whole_, rounded_, part_;
  Cut cut_;
  PartMemory memory_;
};

template <> class Argument<Stream&> {
 public:
  Argument(Stream& stream, Cut) : stream_(stream) {}
  Stream& of(const Part&) { return stream_; }
  void finish_part(bool) {}

 private:
  Stream& stream_;
};

// The number of units, if it follows from the argument, else -1.
template <typename T> Index units_in(const T&, Cut) { return -1; }
template <> inline Index units_in(const InputView& view, Cut cut) {
  if (!is_cut(cut)) return -1;
  if (view.count() == 0) return 0;
  return is_by_rows(cut) ? view.count() / view.shape[-1] : cut == Cut::kFirst ? view.shape[0] : view.count();
}
template <> inline Index units_in(const Pool2dShape& shape, Cut) { return shape.batch; }
template <> inline Index units_in(const Conv2dShape& shape, Cut) { return shape.batch; }
template <> inline Index units_in(const LrnParams& params, Cut) { return params.rows; }
template <> inline Index units_in(const OutputView& view, Cut cut) {
  return units_in(static_cast<InputView>(view), cut);
}
template <typename T> Index elements_in(const T&) { return 0; }
template <> inline Index elements_in(const InputView& view) { return view.count(); }
template <> inline Index elements_in(const OutputView& view) { return view.count(); }

}  // namespace parts

// Runs of an operand's elements as float32, for kernels that cut their work themselves: where they are, or widened.
class ReadRuns {
 public:
  explicit ReadRuns(In view) : view_(view), floats_(is_half(view.dtype) ? nullptr : view.floats()) {}
  const float* at(std::int64_t first, std::int64_t count) {
    if (floats_ != nullptr) return floats_ + first;
    float* const to = memory_.floats(count);
    widen(view_.dtype, static_cast<const std::uint16_t*>(view_.data) + first, to, count);
    return to;
  }

 private:
  const InputView view_;
  const float* const floats_;
  parts::PartMemory memory_;
};
// The values of a run are those of the output only if it accumulates. finish() rounds the run and stores it.
class WriteRuns {
 public:
  explicit WriteRuns(Out view) : view_(view), floats_(is_half(view.dtype) ? nullptr : view.floats()) {}
  float* at(std::int64_t first, std::int64_t count) {
    if (floats_ != nullptr) return floats_ + first;
    count_ = count, halves_ = static_cast<std::uint16_t*>(view_.data) + first;
    float* const to = memory_.floats(count);
    if (view_.accumulate) widen(view_.dtype, halves_, to, count);
    return to;
  }
  void finish() {
    if (floats_ == nullptr) narrow(view_.dtype, memory_.floats(count_), halves_, count_);
  }

 private:
  const OutputView view_;
  float* const floats_;
  std::uint16_t* halves_ = nullptr;
  std::int64_t count_ = 0;
  parts::PartMemory memory_;
};

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
