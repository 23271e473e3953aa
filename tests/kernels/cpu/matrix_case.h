// Cases of matrix products, and the same products in float64.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cases/values.h"
#include "kernels/cpu/products/product.h"

namespace lockstep::testing {

struct MatrixCase {
  Index rows, columns, inner;
  bool transpose_a, transpose_b, accumulate, bias, relu;

  std::string name() const {
    return fmt::format("{} x {} x {}{}{}{}{}{}", rows, columns, inner, transpose_a ? " T" : " N",
                       transpose_b ? "T" : "N", accumulate ? ", added" : "", bias ? ", bias" : "",
                       relu ? ", relu" : "");
  }
  // Rows are further apart than they are long.
  static constexpr Index kGap = 3;
  Index c_step() const { return columns + kGap; }
  MatrixOperand a(const float* data) const {
    return transpose_a ? transposed(data, rows + kGap) : as_stored(data, inner + kGap);
  }
  MatrixOperand b(const float* data) const {
    return transpose_b ? transposed(data, inner + kGap) : as_stored(data, columns + kGap);
  }
  // Up to the end of the last row.
  Index a_count() const { return transpose_a ? inner * (rows + kGap) - kGap : rows * (inner + kGap) - kGap; }
  Index b_count() const { return transpose_b ? columns * (inner + kGap) - kGap : inner * (columns + kGap) - kGap; }
  Index c_count() const { return rows * c_step() - kGap; }

  Product product(const float* of_a, const float* of_b, const float* of_bias, float* result) const {
    return {rows, columns, inner, a(of_a), b(of_b), result, c_step(), accumulate, bias ? of_bias : nullptr, relu};
  }
};

inline float element(const MatrixOperand& matrix, Index row, Index column) {
  return *matrix.from(row, column).floats();
}

struct ExactProduct {
  std::vector<double> values, magnitudes;  // without gaps; and the sums of the products' magnitudes
};

inline ExactProduct exact_product(const MatrixCase& c, const Floats& a, const Floats& b, const Floats& bias,
                                  const Floats& before) {
  ExactProduct exact;
  exact.values.reserve(static_cast<std::size_t>(c.rows * c.columns));
  exact.magnitudes.reserve(static_cast<std::size_t>(c.rows * c.columns));
  std::vector<double> values(static_cast<std::size_t>(c.columns)), magnitudes(values.size());
  for (Index row = 0; row < c.rows; ++row) {
    for (Index column = 0; column < c.columns; ++column) {
      values[column] = (c.accumulate ? before[row * c.c_step() + column] : 0) + (c.bias ? bias[column] : 0);
      magnitudes[column] = std::abs(values[column]);
    }
    const MatrixOperand of_a = c.a(a.data()), of_b = c.b(b.data());
    for (Index k = 0; k < c.inner; ++k) {
      const double factor = element(of_a, row, k);
      const float* line = of_b.from(k, 0).floats();
      for (Index column = 0; column < c.columns; ++column, line += of_b.column_step) {
        const double product = factor * *line;
        values[column] += product, magnitudes[column] += std::abs(product);
      }
    }
    for (Index column = 0; column < c.columns; ++column) {
      exact.values.push_back(c.relu ? std::max(values[column], 0.0) : values[column]);
      exact.magnitudes.push_back(magnitudes[column]);
    }
  }
  return exact;
}

}  // namespace lockstep::testing
