#include "kernels/cpu/products/product.h"

#include <algorithm>

#include "kernels/cpu/products/packed_product.h"
#include "kernels/cpu/products/product_amx.h"
#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/device.h"
#include "src/core/process/compute_threads.h"
#if LOCKSTEP_WITH_ONEDNN
#include "kernels/onednn/onednn_kernels.h"
#endif

namespace lockstep {

namespace {

using Index = std::int64_t;

enum class Candidate { kAmx, kPacked, kPackedTurned, kOneDnn };

// On AVX-512 oneDNN's products are 3 to 10 % faster than our own, unless it has to transpose b. On AVX2 it is as fast
// or slower, by shape, and on some processors far slower with transposed operands (docs/results). A row of the table is
// chosen by the complete product, because candidates round differently.
Candidate candidate_for(const Product& p) {
  if (amx::suits(p.rows, p.columns, p.inner)) return Candidate::kAmx;
  if (packed_product::is_turned(p)) return Candidate::kPackedTurned;
#if LOCKSTEP_WITH_ONEDNN
  constexpr Index kLong = 64;  // shorter sums and sides are faster in our own tiles
  const bool has_transposed_b = p.b.row_step == 1 && p.b.column_step != 1;
  const bool has_end = p.bias != nullptr || p.relu;  // only linear layers have one, and they transpose b
  if (cpu_isa() >= Isa::kAvx512 && !has_transposed_b && !has_end && std::min({p.rows, p.columns, p.inner}) >= kLong)
    return Candidate::kOneDnn;
#endif
  return Candidate::kPacked;
}

void multiply_by(Candidate candidate, const Product& p) {
  switch (candidate) {
    case Candidate::kAmx: return amx::multiply_alone(p);
    case Candidate::kPacked: return packed_product::multiply_alone(p, false);
    case Candidate::kPackedTurned: return packed_product::multiply_alone(p, true);
    case Candidate::kOneDnn: break;
  }
#if LOCKSTEP_WITH_ONEDNN
  onednn::multiply_alone(p);
#endif
}

// Rows [first, end) or columns [first, end).
Product rows_of(Product p, Index first, Index end) {
  p.rows = end - first, p.a.data += first * p.a.row_step, p.c += first * p.c_step;
  return p;
}
Product columns_of(Product p, Index first, Index end) {
  p.columns = end - first, p.b.data += first * p.b.column_step, p.c += first;
  if (p.bias != nullptr) p.bias += first;
  return p;
}

}  // namespace

void multiply_alone(const Product& p) { multiply_by(candidate_for(p), p); }

// Each part packs the operand that all parts share. Parts of columns read b in pieces, so products are cut into those
// only if they have few rows.
void multiply(const Product& p) {
  constexpr Index kBlock = 48, kWorthwhile = 4'000'000, kFewestRows = 192, kFewestColumns = 256;
  const Candidate candidate = candidate_for(p);
  if (candidate == Candidate::kAmx) return amx::multiply(p);
  const bool by_rows = p.rows / kFewestRows * 5 >= p.columns / kFewestColumns;
  const Index length = by_rows ? p.rows : p.columns, blocks = (length + kBlock - 1) / kBlock;
  const Index most =
      std::min(length / (by_rows ? kFewestRows : kFewestColumns), p.rows * p.columns * p.inner / kWorthwhile);
  // How oneDNN cuts sums may depend on the sizes of a part, so the number of its parts must not depend on the threads.
  constexpr Index kMostParts = 16;
  const Index parts = std::clamp<Index>(most, 1, candidate == Candidate::kOneDnn ? kMostParts : compute_threads());
  if (parts == 1) return multiply_by(candidate, p);
  in_parallel(parts, [&](Index part) {
    const Index first = blocks * part / parts * kBlock, end = std::min(length, blocks * (part + 1) / parts * kBlock);
    multiply_by(candidate, (by_rows ? rows_of : columns_of)(p, first, end));
  });
}

}  // namespace lockstep
