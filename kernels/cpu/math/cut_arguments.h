// The arguments of a kernel that runs on one part of its work after the other (in_parts.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include "kernels/cpu/math/runs.h"
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
template <typename T> T of_part(const T& argument, const Part& part) {
  T own = argument;
  if constexpr (requires { own.batch; }) own.batch = part.count;  // the shapes of images
  return own;
}
inline LrnParams of_part(LrnParams params, const Part& part) {
  params.rows = part.count;
  return params;
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

template <typename View> View elements_of(const View& whole, Cut cut, const Part& part) {
  View view = whole;
  if (!is_cut(cut) || !whole) return view;
  const Index first = whole.count() / part.units * part.begin;
  using Byte = std::conditional_t<std::is_same_v<View, InputView>, const std::byte, std::byte>;
  view.data = static_cast<Byte*>(whole.data) + first * static_cast<Index>(size_of(whole.dtype));
  view.shape = shape_of(whole.shape, cut, part);
  return view;
}

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
  WideFloats memory_;
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
  WideFloats memory_;
};

template <> class Argument<Stream&> {
 public:
  Argument(Stream& its_stream, Cut) : stream(its_stream) {}
  Stream& of(const Part&) { return stream; }
  void finish_part(bool) {}
  Stream& stream;
};

}  // namespace parts

}  // namespace lockstep
