#include "src/reduce/hooks/thin_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::hooks {

namespace {

// A row that Gram and Schmidt's method leaves with less than this of its length depends on those before.
constexpr double kDependent = 1e-5;

double dot(const float* a, const float* b, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  double sum = 0;
  for (const float each : sums) sum += each;
  for (; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// to += factor * from
void add(float factor, const float* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

}  // namespace

void multiply(const float* m, const float* q, const Extents& extents, float* p) {
  for (std::size_t i = 0; i < extents.rows; ++i)
    for (std::size_t j = 0; j < extents.rank; ++j)
      p[j * extents.rows + i] = static_cast<float>(dot(m + i * extents.columns, q + j * extents.columns, extents.columns));
}

void multiply_transposed(const float* m, const float* p, const Extents& extents, float* q) {
  std::fill(q, q + extents.rank * extents.columns, 0.0f);
  for (std::size_t i = 0; i < extents.rows; ++i)
    for (std::size_t j = 0; j < extents.rank; ++j)
      add(p[j * extents.rows + i], m + i * extents.columns, q + j * extents.columns, extents.columns);
}

void multiply_out(const float* p, const float* q, const Extents& extents, float* m) {
  std::fill(m, m + extents.rows * extents.columns, 0.0f);
  for (std::size_t i = 0; i < extents.rows; ++i)
    for (std::size_t j = 0; j < extents.rank; ++j)
      add(p[j * extents.rows + i], q + j * extents.columns, m + i * extents.columns, extents.columns);
}

void orthonormalise(float* p, const Extents& extents) {
  const std::size_t count = extents.rows;
  for (std::size_t j = 0; j < extents.rank; ++j) {
    float* const row = p + j * count;
    const double before = std::sqrt(dot(row, row, count));
    for (int again = 0; again < 2; ++again)
      for (std::size_t k = 0; k < j; ++k) add(-static_cast<float>(dot(p + k * count, row, count)), p + k * count, row, count);
    const double length = std::sqrt(dot(row, row, count));
    const float factor = length > kDependent * before && length > 0 ? static_cast<float>(1 / length) : 0;
    for (std::size_t i = 0; i < count; ++i) row[i] *= factor;
  }
}

std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return hash;
}

}  // namespace lockstep::hooks
