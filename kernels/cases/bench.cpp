#include "kernels/cases/bench.h"

#include "lockstep/core/error.h"

namespace lockstep::testing {

namespace {

std::vector<std::byte> narrowed(DType type, const Floats& values) {
  const auto count = static_cast<Index>(values.size());
  std::vector<std::byte> bytes(values.size() * size_of(type));
  reference_kernels().convert(InputView(values.data(), {count}), OutputView(bytes.data(), type, {count}),
                              cpu_device().default_stream());
  return bytes;
}

Floats widened(DType type, const std::byte* bytes, Index count) {
  Floats values(static_cast<std::size_t>(count));
  reference_kernels().convert(InputView(bytes, type, {count}), OutputView(values.data(), {count}),
                              cpu_device().default_stream());
  return values;
}

}  // namespace

InputView Bench::in_of(DType of, const Shape& shape, Floats values, Place place) {
  LOCKSTEP_CHECK(shape.count() == static_cast<Index>(values.size()), "{} values for {}", values.size(), shape.text());
  return {add(narrowed(of, chosen(std::move(values))), size_of(of), place, {}), of, shape};
}

OutputView Bench::out_of(DType of, const Shape& shape, Floats initial, bool accumulate, Place place) {
  LOCKSTEP_CHECK(shape.count() == static_cast<Index>(initial.size()), "{} values for {}", initial.size(), shape.text());
  const auto read = [of](const std::byte* bytes, Index count) { return widened(of, bytes, count); };
  return {add(narrowed(of, chosen(std::move(initial))), size_of(of), place, read), of, shape, accumulate};
}

}  // namespace lockstep::testing
