// PowerSGD's factors. cuBLASLt computes M Q and M^T P, which differ between ranks. Results that must have the same bits
// on all ranks, on whatever GPUs, are computed here, in an order that depends only on the extents: the orthonormal P,
// by one block, and the product P Q^T.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fast_division.cuh"
#include "lockstep/core/philox.h"
#include "lockstep/reduce/compression_kernels.h"

namespace lockstep::cuda {

using hooks::kMostMatrixRank;
using hooks::PowerSgdMatrix;
using hooks::PowerSgdRandom;

namespace {

// If Gram-Schmidt leaves less than this share of a row's length, the row depends on earlier ones.
constexpr double kDependent = 1e-5;
constexpr int kGramThreads = 512, kGramWarps = kGramThreads / 32;
static_assert(kMostMatrixRank <= kGramThreads, "a thread a coefficient");

// One block per row.
__global__ void refill_rows(PowerSgdMatrix of, PowerSgdRandom random, bool all, float* q) {
  for (Index j = blockIdx.x; j < of.rank; j += gridDim.x) {
    float* const row = q + j * of.columns;
    bool has_any = false;
    for (Index i = threadIdx.x; i < of.columns; i += blockDim.x) has_any |= row[i] != 0;
    if (__syncthreads_or(has_any ? 1 : 0) != 0 && !all) continue;
    for (Index block = threadIdx.x; block * 4 < of.columns; block += blockDim.x) {
      const PhiloxBlock drawn =
          philox_block(random.seed, random.stream + static_cast<std::uint64_t>(j), static_cast<std::uint64_t>(block));
      for (Index word = 0; word < 4 && block * 4 + word < of.columns; ++word)
        row[block * 4 + word] = static_cast<float>(drawn.words[word] >> 8) * 0x1p-23F - 1;
    }
  }
}

__device__ double length_of_row(const float* row, Index count) {
  __shared__ double shared;
  double squares = 0;
  for (Index i = threadIdx.x; i < count; i += kGramThreads) squares += static_cast<double>(row[i]) * row[i];
  squares = sum_of_block<kGramThreads>(squares);
  if (threadIdx.x == 0) shared = sqrt(squares);
  __syncthreads();
  const double length = shared;
  __syncthreads();  // all threads have read it before the next one
  return length;
}

// row -= its projections on the `before` rows from p on. Each row has one warp; if there are few rows, several warps
// share a row.
__device__ void subtract_projections(const float* p, Index before, float* row, Index count) {
  __shared__ double sums[kMostMatrixRank];
  __shared__ float factors[kMostMatrixRank];
  static_assert(kMostMatrixRank >= kGramWarps, "a sum a warp");
  const Index lane = threadIdx.x % 32, parts = before < kGramWarps ? kGramWarps / before : 1;
  for (Index task = threadIdx.x / 32; task < before * parts; task += kGramWarps) {
    const float* const other = p + task / parts * count;
    double sum = 0;
    for (Index i = task % parts * 32 + lane; i < count; i += parts * 32) sum += static_cast<double>(other[i]) * row[i];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (lane == 0) sums[task] = sum;
  }
  __syncthreads();
  if (threadIdx.x < before) {
    double sum = 0;
    for (Index part = 0; part < parts; ++part) sum += sums[threadIdx.x * parts + part];
    factors[threadIdx.x] = static_cast<float>(sum);
  }
  __syncthreads();
  for (Index i = threadIdx.x; i < count; i += kGramThreads) {
    float value = row[i];
    for (Index k = 0; k < before; ++k) value -= factors[k] * p[k * count + i];
    row[i] = value;
  }
  __syncthreads();
}

// Runs in one block.
__global__ void orthonormalise_rows(PowerSgdMatrix of, float* p, std::int32_t* is_finite) {
  const Index count = of.rank * of.rows;
  bool is_bad = false;
  for (Index i = threadIdx.x; i < count; i += kGramThreads) is_bad |= !isfinite(p[i]);
  is_bad = __syncthreads_or(is_bad ? 1 : 0) != 0;
  if (threadIdx.x == 0) *is_finite = is_bad ? 0 : 1;
  if (is_bad) {
    for (Index i = threadIdx.x; i < count; i += kGramThreads) p[i] = 0;
    return;
  }
  for (Index j = 0; j < of.rank; ++j) {
    float* const row = p + j * of.rows;
    const double before = length_of_row(row, of.rows);
    for (int again = 0; again < 2 && j > 0; ++again) subtract_projections(p, j, row, of.rows);
    const double length = length_of_row(row, of.rows);
    const float factor = length > kDependent * before && length > 0 ? static_cast<float>(1 / length) : 0.0F;
    for (Index i = threadIdx.x; i < of.rows; i += kGramThreads) row[i] *= factor;
    __syncthreads();
  }
}

template <typename Number> __global__ void expand_factors(PowerSgdMatrix of, Divisor<Number> columns, const float* p,
                                                          const float* q, const std::int32_t* is_finite, float* m,
                                                          float* error, float* kept_q) {
  const bool is_bad = *is_finite == 0;
  for (Index i = first_item(); i < of.rank * of.columns; i += stride_of_grid()) kept_q[i] = is_bad ? 0.0F : q[i];
  for (Index i = first_item(); i < of.rows * of.columns; i += stride_of_grid()) {
    const Divided<Number> at = columns.divide(static_cast<Number>(i));
    const Index row = at.quotient, column = at.remainder;
    float product = 0;
    for (Index j = 0; j < of.rank; ++j) product += p[j * of.rows + row] * q[j * of.columns + column];
    if (error != nullptr) error[i] = is_bad ? 0.0F : m[i] - product;
    m[i] = is_bad ? nanf("") : product;
  }
}

void refill_q(const PowerSgdMatrix& of, const PowerSgdRandom& random, bool all, float* q, Stream& stream) {
  if (of.rank > 0) LOCKSTEP_LAUNCH(refill_rows, blocks_for(of.rank, 1), kThreads, 0, stream, of, random, all, q);
}

void multiply_by_q(const PowerSgdMatrix& of, const float* m, const float* q, float* p, Stream& stream) {
  matmul({q, {1, of.rank, of.columns}}, false, {m, {1, of.rows, of.columns}}, true, {p, {1, of.rank, of.rows}}, stream);
}

void multiply_by_p(const PowerSgdMatrix& of, const float* m, const float* p, float* q, Stream& stream) {
  matmul({p, {1, of.rank, of.rows}}, false, {m, {1, of.rows, of.columns}}, false, {q, {1, of.rank, of.columns}},
         stream);
}

void orthonormalise_p(const PowerSgdMatrix& of, float* p, std::int32_t* is_finite, Stream& stream) {
  LOCKSTEP_LAUNCH(orthonormalise_rows, 1, kGramThreads, 0, stream, of, p, is_finite);
}

void expand_by_factors(const PowerSgdMatrix& of, const float* p, const float* q, const std::int32_t* is_finite,
                       float* m, float* error, float* kept_q, Stream& stream) {
  const Index count = std::max(of.rows, of.rank) * of.columns;
  if (count == 0) return;
  with_index_of(count, [&]<typename Number>(Number) {
    LOCKSTEP_LAUNCH((expand_factors<Number>), blocks_for(count), kThreads, 0, stream, of, Divisor<Number>(of.columns),
                    p, q, is_finite, m, error, kept_q);
  });
}

}  // namespace

void add_power_sgd_kernels(KernelTable& table) {
  static constexpr hooks::PowerSgdKernels kKernels = {.refill = refill_q,
                                                      .multiply = multiply_by_q,
                                                      .multiply_transposed = multiply_by_p,
                                                      .orthonormalise = orthonormalise_p,
                                                      .expand = expand_by_factors};
  table.families.set(kKernels);
}

}  // namespace lockstep::cuda
