// PowerSGD's products of a matrix and thin matrices, on one thread; the order of the sums does not depend on the
// machine.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/reference/reference.h"
#include "lockstep/core/philox.h"
#include "lockstep/reduce/compression_kernels.h"

namespace lockstep::reference {

using hooks::PowerSgdMatrix;
using hooks::PowerSgdRandom;

namespace {

// If Gram-Schmidt leaves less than this share of a row's length, the row depends on earlier ones.
constexpr double kDependent = 1e-5;

double dot_of_rows(const float* a, const float* b, Index count) {
  constexpr Index kLanes = 16;
  std::array<float, kLanes> sums{};
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (Index lane = 0; lane < kLanes; ++lane) sums[static_cast<std::size_t>(lane)] += a[i + lane] * b[i + lane];
  double sum = 0;
  for (const float each : sums) sum += each;
  for (; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// to += factor * from
void add_multiple(float factor, const float* from, float* to, Index count) {
  for (Index i = 0; i < count; ++i) to[i] += factor * from[i];
}

void refill_factor(const PowerSgdMatrix& of, const PowerSgdRandom& random, bool all, float* q, Stream&) {
  for (Index j = 0; j < of.rank; ++j) {
    float* const row = q + j * of.columns;
    if (!all && std::any_of(row, row + of.columns, [](float value) { return value != 0; })) continue;
    const std::uint64_t stream = random.stream + static_cast<std::uint64_t>(j);
    for (Index i = 0; i < of.columns; ++i) {
      const PhiloxBlock block = philox_block(random.seed, stream, static_cast<std::uint64_t>(i / 4));
      row[i] = static_cast<float>(block.words[i % 4] >> 8) * 0x1p-23F - 1;
    }
  }
}

void multiply_by_factor(const PowerSgdMatrix& of, const float* m, const float* q, float* p, Stream&) {
  for (Index i = 0; i < of.rows; ++i)
    for (Index j = 0; j < of.rank; ++j)
      p[j * of.rows + i] = static_cast<float>(dot_of_rows(m + i * of.columns, q + j * of.columns, of.columns));
}

void multiply_transposed_by_factor(const PowerSgdMatrix& of, const float* m, const float* p, float* q, Stream&) {
  std::fill_n(q, of.rank * of.columns, 0.0F);
  for (Index i = 0; i < of.rows; ++i)
    for (Index j = 0; j < of.rank; ++j)
      add_multiple(p[j * of.rows + i], m + i * of.columns, q + j * of.columns, of.columns);
}

void orthonormalise(const PowerSgdMatrix& of, float* p, std::int32_t* is_finite, Stream&) {
  const Index count = of.rows;
  *is_finite = std::all_of(p, p + of.rank * count, [](float value) { return std::isfinite(value); }) ? 1 : 0;
  if (*is_finite == 0) std::fill_n(p, of.rank * count, 0.0F);
  for (Index j = 0; j < of.rank; ++j) {
    float* const row = p + j * count;
    const double before = std::sqrt(dot_of_rows(row, row, count));
    for (int again = 0; again < 2; ++again)
      for (Index k = 0; k < j; ++k)
        add_multiple(-static_cast<float>(dot_of_rows(p + k * count, row, count)), p + k * count, row, count);
    const double length = std::sqrt(dot_of_rows(row, row, count));
    const float factor = length > kDependent * before && length > 0 ? static_cast<float>(1 / length) : 0;
    for (Index i = 0; i < count; ++i) row[i] *= factor;
  }
}

// Computes row by row: `error` holds M until the product replaces it.
void expand_row(const PowerSgdMatrix& of, const float* p, const float* q, Index row, float* m, float* error) {
  if (error != nullptr) std::copy(m, m + of.columns, error);
  std::fill_n(m, of.columns, 0.0F);
  for (Index j = 0; j < of.rank; ++j) add_multiple(p[j * of.rows + row], q + j * of.columns, m, of.columns);
  if (error != nullptr)
    for (Index i = 0; i < of.columns; ++i) error[i] -= m[i];
}

void expand_factors(const PowerSgdMatrix& of, const float* p, const float* q, const std::int32_t* is_finite, float* m,
                    float* error, float* kept_q, Stream&) {
  const Index count = of.rows * of.columns, q_count = of.rank * of.columns;
  if (*is_finite == 0) {
    std::fill_n(m, count, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(kept_q, q_count, 0.0F);
    if (error != nullptr) std::fill_n(error, count, 0.0F);
    return;
  }
  std::copy(q, q + q_count, kept_q);
  for (Index row = 0; row < of.rows; ++row)
    expand_row(of, p, q, row, m + row * of.columns, error == nullptr ? nullptr : error + row * of.columns);
}

}  // namespace

void add_power_sgd_kernels(KernelTable& table) {
  static constexpr hooks::PowerSgdKernels kKernels = {.refill = refill_factor,
                                                      .multiply = multiply_by_factor,
                                                      .multiply_transposed = multiply_transposed_by_factor,
                                                      .orthonormalise = orthonormalise,
                                                      .expand = expand_factors};
  table.families.set(kKernels);
}

}  // namespace lockstep::reference
