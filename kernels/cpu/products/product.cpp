#include "kernels/cpu/products/product.h"

#include <algorithm>

#include "kernels/cpu/math/any_float.h"
#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/products/packed_product.h"
#include "kernels/cpu/products/product_amx.h"
#include "kernels/cpu/products/vector_product.h"
#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "src/core/process/compute_threads.h"
#if LOCKSTEP_WITH_ONEDNN
#include "kernels/onednn/onednn_kernels.h"
#endif

namespace lockstep {

namespace {

using Index = std::int64_t;

enum class Candidate { kVector, kAmx, kPacked, kPackedTurned, kOneDnn, kOneDnnBFloat16 };

// On AVX-512 oneDNN's products are 3 to 10 % faster than our own, unless it has to transpose b. On AVX2 it is as fast
// or slower, by shape, and on some processors far slower with transposed operands (docs/results). bfloat16 operands are
// multiplied directly where the processor can; elsewhere our own products widen what they pack. A row of the table is
// chosen by the complete product, because candidates round differently.
Candidate candidate_for(const Product& p) {
  if (vector_product::suits(p)) return Candidate::kVector;
#if LOCKSTEP_WITH_ONEDNN
  constexpr Index kLong = 64;  // shorter sums and sides are faster in our own tiles
  const bool is_long = std::min({p.rows, p.columns, p.inner}) >= kLong;
  if (p.a.type == DType::kBFloat16 && is_long && onednn::multiplies_bfloat16()) return Candidate::kOneDnnBFloat16;
#endif
  if (amx::suits(p.rows, p.columns, p.inner)) return Candidate::kAmx;
  if (packed_product::is_turned(p)) return Candidate::kPackedTurned;
#if LOCKSTEP_WITH_ONEDNN
  const bool has_transposed_b = p.b.row_step == 1 && p.b.column_step != 1;
  const bool has_end = p.bias != nullptr || p.relu;  // only linear layers have one, and they transpose b
  if (cpu_isa() >= Isa::kAvx512 && !is_half(p.a.type) && !has_transposed_b && !has_end && is_long)
    return Candidate::kOneDnn;
#endif
  return Candidate::kPacked;
}

#if LOCKSTEP_WITH_ONEDNN
// The result of a candidate without bias and ReLU.
void finish(const Product& p) {
  for (Index row = 0; row < p.rows && (p.bias != nullptr || p.relu); ++row) {
    float* const c = p.c + row * p.c_step;
    for (Index column = 0; column < p.columns; ++column) {
      const float sum = p.bias == nullptr ? c[column] : c[column] + p.bias[column];
      c[column] = p.relu && sum < 0 ? 0 : sum;
    }
  }
}
#endif

// A copy of a matrix as float32, in the same order.
class WidenedMatrix {
 public:
  WidenedMatrix(const MatrixOperand& matrix, Index rows, Index columns)
      : lines_(matrix.column_step == 1 ? rows : columns),
        length_(matrix.column_step == 1 ? columns : rows),
        memory_(is_half(matrix.type) ? lines_ * length_ : 1),
        matrix_(matrix) {
    if (!is_half(matrix.type)) return;
    const bool by_rows = matrix.column_step == 1;
    for (Index line = 0; line < lines_; ++line)
      widen(matrix.type, matrix.from(by_rows ? line : 0, by_rows ? 0 : line).data, memory_.data() + line * length_,
            length_);
    matrix_ = by_rows ? as_stored(memory_.data(), length_) : transposed(memory_.data(), length_);
  }
  const MatrixOperand& matrix() const { return matrix_; }

 private:
  Index lines_, length_;
  Scratch memory_;
  MatrixOperand matrix_;
};

void multiply_by(Candidate candidate, const Product& p) {
  switch (candidate) {
    case Candidate::kVector: return vector_product::multiply_alone(p);
    case Candidate::kAmx: return amx::multiply_alone(p);
    case Candidate::kPacked: return packed_product::multiply_alone(p, false);
    case Candidate::kPackedTurned: return packed_product::multiply_alone(p, true);
    case Candidate::kOneDnn:
    case Candidate::kOneDnnBFloat16: break;
  }
#if LOCKSTEP_WITH_ONEDNN
  if (candidate == Candidate::kOneDnn) return onednn::multiply_alone(p);
  onednn::multiply_bfloat16_alone(p);
  finish(p);
#endif
}

// Rows [first, end) or columns [first, end).
Product rows_of(Product p, Index first, Index end) {
  p.rows = end - first, p.a = p.a.from(first, 0);
  if (p.c != nullptr) p.c += first * p.c_step;
  return p;
}
Product columns_of(Product p, Index first, Index end) {
  p.columns = end - first, p.b = p.b.from(0, first);
  if (p.c != nullptr) p.c += first;
  if (p.bias != nullptr) p.bias += first;
  return p;
}

// How a product is cut for threads. Each part packs the operand that all parts share. Parts of columns read b in
// pieces, so products are cut into those only if they have few rows. Those of vector_product take the time of reading
// b.
struct Parts {
  static constexpr Index kBlock = 48, kWorthwhile = 4'000'000, kFewestRows = 192, kFewestColumns = 256;
  static constexpr Index kWorthReading = 250'000, kFewestRead = 96;

  bool by_rows;
  Index length, most;

  Parts(Candidate candidate, const Product& p)
      : by_rows(candidate != Candidate::kVector && p.rows / kFewestRows * 5 >= p.columns / kFewestColumns),
        length(by_rows ? p.rows : p.columns),
        most(candidate == Candidate::kVector ? std::min(length / kFewestRead, p.columns * p.inner / kWorthReading)
                                             : std::min(length / (by_rows ? kFewestRows : kFewestColumns),
                                                        p.rows * p.columns * p.inner / kWorthwhile)) {}

  Index begin(Index part, Index parts) const {
    const Index blocks = (length + kBlock - 1) / kBlock;
    return std::min(length, blocks * part / parts * kBlock);
  }
};

// How oneDNN cuts sums may depend on the sizes of a part, so the number of its parts must not depend on the threads.
Index threads_for(Candidate candidate) {
  constexpr Index kMostParts = 16;
  const bool is_onednn = candidate == Candidate::kOneDnn || candidate == Candidate::kOneDnnBFloat16;
  return is_onednn ? kMostParts : compute_threads();
}

// Calls compute(candidate, product), with copies of 16-bit operands for a candidate that only reads float32.
template <typename Compute> void with_candidate(const Product& p, const Compute& compute) {
  LOCKSTEP_CHECK(p.a.type == p.b.type, "a product of {} and {}", name_of(p.a.type), name_of(p.b.type));
  const Candidate candidate = candidate_for(p);
  if (candidate != Candidate::kAmx || !is_half(p.a.type)) return compute(candidate, p);
  const WidenedMatrix a(p.a, p.rows, p.inner), b(p.b, p.inner, p.columns);
  Product wide = p;
  wide.a = a.matrix(), wide.b = b.matrix();
  compute(candidate, wide);
}

// c is computed and rounded in parts of about kFloats elements.
void multiply_rounded(Candidate candidate, Out c, const Product& given, bool is_alone) {
  constexpr Index kFloats = Index{1} << 18U;
  const Parts cut(candidate, given);
  const Index blocks = (cut.length + Parts::kBlock - 1) / Parts::kBlock;
  const Index for_memory = (given.rows * given.columns + kFloats - 1) / kFloats;
  const Index for_threads = is_alone ? 1 : std::clamp<Index>(cut.most, 1, threads_for(candidate));
  const Index parts = std::min(blocks, std::max(for_memory, for_threads));
  const auto compute = [&](Index part) {
    const Index first = cut.begin(part, parts), end = cut.begin(part + 1, parts);
    Product p = given;
    p.c_step = cut.by_rows ? p.columns : end - first;
    p.accumulate = c.accumulate;
    const Scratch memory((cut.by_rows ? end - first : p.rows) * p.c_step);
    p = (cut.by_rows ? rows_of : columns_of)(p, first, end);
    p.c = memory.data();
    const auto target = as_stored(c, given.columns).from(cut.by_rows ? first : 0, cut.by_rows ? 0 : first);
    for (Index row = 0; row < p.rows && c.accumulate; ++row)
      widen(c.dtype, target.from(row, 0).data, p.c + row * p.c_step, p.columns);
    candidate == Candidate::kAmx ? amx::multiply_part(p, amx::streams_rows(given)) : multiply_by(candidate, p);
    for (Index row = 0; row < p.rows; ++row)
      narrow(c.dtype, p.c + row * p.c_step, const_cast<void*>(target.from(row, 0).data), p.columns);
  };
  if (is_alone)
    for (Index part = 0; part < parts; ++part) compute(part);
  else
    in_parallel(parts, compute);
}

void multiply_in_parts(Candidate candidate, const Product& p) {
  if (candidate == Candidate::kAmx) return amx::multiply(p);
  const Parts cut(candidate, p);
  const Index parts = std::clamp<Index>(cut.most, 1, threads_for(candidate));
  if (parts == 1) return multiply_by(candidate, p);
  in_parallel(parts, [&](Index part) {
    multiply_by(candidate, (cut.by_rows ? rows_of : columns_of)(p, cut.begin(part, parts), cut.begin(part + 1, parts)));
  });
}

Product with_result(Product p, Out c) {
  p.c = c.floats(), p.c_step = p.columns, p.accumulate = c.accumulate;
  return p;
}

}  // namespace

void multiply_alone(const Product& p) { with_candidate(p, multiply_by); }

void multiply(const Product& p) { with_candidate(p, multiply_in_parts); }

void multiply_alone_into(Out c, Product p) {
  if (!is_half(c.dtype)) return multiply_alone(with_result(p, c));
  with_candidate(p, [&](Candidate candidate, const Product& wide) { multiply_rounded(candidate, c, wide, true); });
}

void multiply_into(Out c, Product p) {
  if (!is_half(c.dtype)) return multiply(with_result(p, c));
  with_candidate(p, [&](Candidate candidate, const Product& wide) { multiply_rounded(candidate, c, wide, false); });
}

}  // namespace lockstep
