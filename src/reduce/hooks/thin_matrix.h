// The products of PowerSGD: of a matrix M (rows x columns, row-major) and thin ones of `rank` columns, which lie transposed. On one thread;
// sums in an order of their own that does not depend on the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::hooks {

inline constexpr std::int64_t kMostRank = 256;

struct Extents {
  std::size_t rows = 0, columns = 0, rank = 0;
};

// p (rank x rows) = (M Q)^T, of q (rank x columns).
void multiply(const float* m, const float* q, const Extents& extents, float* p);
// q (rank x columns) = P^T M.
void multiply_transposed(const float* m, const float* p, const Extents& extents, float* q);
// m = P Q^T.
void multiply_out(const float* p, const float* q, const Extents& extents, float* m);
// Rows of p become orthonormal, by Gram and Schmidt's method, twice each; those that depend on others become zero.
void orthonormalise(float* p, const Extents& extents);

// A stream of random numbers for a name.
std::uint64_t stream_of(std::string_view name);

}  // namespace lockstep::hooks
