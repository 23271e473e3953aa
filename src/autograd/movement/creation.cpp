#include "lockstep/autograd/creation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/indexing.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/tensor/random.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

// The elements of the last two dimensions in the columns [begin, end) = kept(row), and 0 elsewhere.
template <typename Kept> Tensor part_of_matrix(const char* name, const Tensor& x, const Kept& kept_columns) {
  check_activation(name, "x", x);
  if (x.shape().dims() < 2)
    throw InvalidArgument("{}: x {} is no matrix, expected at least two dimensions", name, x.shape().text());
  const std::int64_t rows = x.shape()[-2], columns = x.shape()[-1];
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows * columns));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto [begin, end] = kept_columns(row, columns);
    if (begin < end) std::fill(mask.begin() + row * columns + begin, mask.begin() + row * columns + end, 1);
  }
  const Tensor kept = Tensor::from<std::uint8_t>(mask, {rows, columns}, x.device());
  return where(kept, x, constant_like(x, 0));
}

constexpr double kMostNumbers = 0x1p40;

void check_step(double step) {
  if (step == 0 || std::isnan(step)) throw InvalidArgument("arange: got step {}, expected another number than 0", step);
}

}  // namespace

Tensor ones(const Shape& shape, Device& device) { return Tensor::full(shape, 1, device); }

Tensor rand(const Shape& shape, Device& device) {
  const Tensor y = Tensor::empty(shape, DType::kFloat32, device);
  fill_uniform(y, 0, 1);
  return y;
}

Tensor randn(const Shape& shape, Device& device) {
  const Tensor y = Tensor::empty(shape, DType::kFloat32, device);
  fill_normal(y, 0, 1);
  return y;
}

Tensor full_like(const Tensor& x, float value) {
  check_activation("full_like", "x", x);
  return filled_like(x, value);
}
Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }
Tensor ones_like(const Tensor& x) { return full_like(x, 1); }

Tensor arange_integers(std::int64_t start, std::int64_t end, std::int64_t step, Device& device) {
  check_step(static_cast<double>(step));
  std::vector<std::int64_t> values;
  const auto is_before_end = [&](std::int64_t value) { return step > 0 ? value < end : value > end; };
  for (std::int64_t value = start; is_before_end(value);) {
    values.push_back(value);
    if (__builtin_add_overflow(value, step, &value)) break;  // the end is nearer than the next value
  }
  return Tensor::from<std::int64_t>(values, {static_cast<std::int64_t>(values.size())}, device);
}

Tensor arange_numbers(double start, double end, double step, Device& device) {
  check_step(step);
  const double numbers = std::max(0.0, std::ceil((end - start) / step));
  if (!std::isfinite(start) || !std::isfinite(end) || !(numbers <= kMostNumbers))
    throw InvalidArgument("arange: expected finite bounds and at most {} numbers, got {} to {} in steps of {}",
                          kMostNumbers, start, end, step);
  const auto count = static_cast<std::int64_t>(numbers);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(start + static_cast<double>(i) * step));
  return Tensor::from<float>(values, {count}, device);
}

Tensor linspace(double start, double end, std::int64_t steps, Device& device) {
  if (steps < 0) throw InvalidArgument("linspace: got {} steps, expected 0 or more", steps);
  std::vector<float> values;
  for (std::int64_t i = 0; i < steps; ++i) {
    const double share = steps == 1 ? 0 : static_cast<double>(i) / static_cast<double>(steps - 1);
    values.push_back(
        static_cast<float>(share < 0.5 ? start + share * (end - start) : end - (1 - share) * (end - start)));
  }
  return Tensor::from<float>(values, {steps}, device);
}

Tensor eye(std::int64_t rows, std::int64_t columns, Device& device) {
  if (columns < 0) columns = rows;
  std::vector<float> values(static_cast<std::size_t>(Shape{rows, columns}.count()));
  for (std::int64_t i = 0; i < std::min(rows, columns); ++i) values[static_cast<std::size_t>(i * columns + i)] = 1;
  return Tensor::from<float>(values, {rows, columns}, device);
}

Tensor one_hot(const Tensor& labels, std::int64_t classes) {
  check_input("one_hot", "labels", labels, kAnyDims, nullptr, DType::kInt64);
  if (classes < 1) throw InvalidArgument("one_hot: got {} classes, expected 1 or more", classes);
  std::vector<std::int64_t> extents(labels.shape().extents().begin(), labels.shape().extents().end());
  extents.push_back(classes);
  const Tensor zeros = Tensor::zeros(Shape(std::span<const std::int64_t>(extents)), DType::kFloat32, labels.device());
  const int last = static_cast<int>(labels.shape().dims());
  return scatter(zeros, last, unsqueeze(labels, last), 1);
}

Tensor tril(const Tensor& x, std::int64_t diagonal) {
  return part_of_matrix("tril", x, [=](std::int64_t row, std::int64_t columns) {
    return std::pair(std::int64_t{0}, row + std::clamp(diagonal, -row - 1, columns - row - 1) + 1);
  });
}
Tensor triu(const Tensor& x, std::int64_t diagonal) {
  return part_of_matrix("triu", x, [=](std::int64_t row, std::int64_t columns) {
    return std::pair(row + std::clamp(diagonal, -row, columns - row), columns);
  });
}

}  // namespace lockstep
