// Sums over any dimensions, step by step (kernels/reduction_plan.h), extremes with their positions, and products.
// Everything has a fixed order, so results are reproducible bit for bit. If there are few results, the array is cut
// into parts, depending only on its shape, whose results are then reduced.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fast_division.cuh"
#include "kernels/reduction_plan.h"

namespace lockstep::cuda {

namespace {

constexpr int kLanes = 32;
constexpr int kReducedColumns = 32, kReducedRows = 8;  // of a block that sums columns: a warp reads a row of the tile
constexpr Index kFewResults = 1024, kShortRow = 1024;
constexpr Index kPartOfRow = 8192, kPartOfColumn = 64;  // minimum number of elements in a part
constexpr Index kMostReductionParts = 1024;

// x (outer, n, inner) cut into parts of its middle dimension: part p has the indices first(p) .. first(p + 1).
struct Cut {
  Index n, parts;
  __device__ Index first(Index part) const { return n / parts * part + (part < n % parts ? part : n % parts); }
};

// The function of an element that is summed.
enum class Summed { kValue, kMagnitude, kSquare };
template <Summed what, typename T> __device__ float summed(T element) {
  const float x = widen(element);
  return what == Summed::kMagnitude ? fabsf(x) : what == Summed::kSquare ? x * x : x;
}

// One warp per row: out[row] = factor * the row's sum.
template <Summed what, typename From, typename To>
__global__ void sum_short_rows(const From* x, Index rows, Index n, float factor, To* out, bool accumulate) {
  const Index lane = threadIdx.x % kLanes, warps = stride_of_grid() / kLanes;
  for (Index row = first_item() / kLanes; row < rows; row += warps) {
    float sum = 0;
    for (Index i = lane; i < n; i += kLanes) sum += summed<what>(x[row * n + i]);
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane == 0) store(out[row], factor * sum, accumulate);
  }
}

// One block per part of a row: out (rows, parts).
template <Summed what, typename From, typename To>
__global__ void sum_long_rows(const From* x, Index rows, Cut cut, float factor, To* out, bool accumulate) {
  for (Index block = blockIdx.x; block < rows * cut.parts; block += gridDim.x) {
    const Index row = block / cut.parts, part = block % cut.parts;
    float sum = 0;
    for (Index i = cut.first(part) + threadIdx.x; i < cut.first(part + 1); i += kThreads)
      sum += summed<what>(x[row * cut.n + i]);
    sum = sum_of_block<kThreads>(sum);
    if (threadIdx.x == 0) store(out[block], factor * sum, accumulate);
  }
}

// One block per tile of columns of a part: out (outer, parts, inner).
template <Summed what, typename From, typename To>
__global__ void sum_middle(const From* x, Index outer, Cut cut, Index inner, float factor, To* out, bool accumulate) {
  __shared__ float shared[kReducedRows][kReducedColumns];
  const Index tiles = (inner + kReducedColumns - 1) / kReducedColumns;
  for (Index block = blockIdx.x; block < outer * cut.parts * tiles; block += gridDim.x) {
    const Index column = block % tiles * kReducedColumns + threadIdx.x, group = block / tiles, part = group % cut.parts,
                o = group / cut.parts;
    float sum = 0;
    if (column < inner)
      for (Index i = cut.first(part) + threadIdx.y; i < cut.first(part + 1); i += kReducedRows)
        sum += summed<what>(x[(o * cut.n + i) * inner + column]);
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < inner) {
      for (int row = 1; row < kReducedRows; ++row) sum += shared[row][threadIdx.x];
      store(out[group * inner + column], factor * sum, accumulate);
    }
    __syncthreads();
  }
}

template <Summed what, typename From, typename To>
__global__ void scale_into(const From* x, Index count, float factor, To* out, bool accumulate) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) store(out[i], factor * summed<what>(x[i]), accumulate);
}

Index parts_of(const ReductionStep& step) {
  const Index least = step.inner == 1 ? kPartOfRow : kPartOfColumn;
  const Index results =
      step.inner == 1 ? step.outer : step.outer * ((step.inner + kReducedColumns - 1) / kReducedColumns);
  if (results >= kFewResults || step.n < 2 * least) return 1;
  return std::clamp<Index>(std::min(step.n / least, kFewResults / results), 1, kMostReductionParts);
}

// out (outer, inner) = factor * the sums of x (outer, n, inner)
template <Summed what, typename From, typename To>
void launch_step(const From* x, const ReductionStep& step, float factor, To* out, bool accumulate, Stream& stream) {
  const Index parts = parts_of(step);
  const Index count = step.outer * step.inner;
  if (parts > 1) {
    const Scratch sums(stream, static_cast<std::size_t>(count * parts) * sizeof(float));
    auto* const of_parts = sums.as<float>();
    const Cut cut{step.n, parts};
    if (step.inner == 1)
      LOCKSTEP_LAUNCH((sum_long_rows<what, From, float>), blocks_for(step.outer * parts, 1), kThreads, 0, stream, x,
                      step.outer, cut, 1.0F, of_parts, false);
    else
      LOCKSTEP_LAUNCH((sum_middle<what, From, float>),
                      blocks_for(step.outer * parts * ((step.inner + kReducedColumns - 1) / kReducedColumns), 1),
                      dim3(kReducedColumns, kReducedRows), 0, stream, x, step.outer, cut, step.inner, 1.0F, of_parts,
                      false);
    return launch_step<Summed::kValue, float, To>(of_parts, {step.outer, parts, step.inner}, factor, out, accumulate,
                                                  stream);
  }
  const Cut whole{step.n, 1};
  if (step.inner > 1)
    LOCKSTEP_LAUNCH((sum_middle<what, From, To>),
                    blocks_for(step.outer * ((step.inner + kReducedColumns - 1) / kReducedColumns), 1),
                    dim3(kReducedColumns, kReducedRows), 0, stream, x, step.outer, whole, step.inner, factor, out,
                    accumulate);
  else if (step.n < kShortRow)
    LOCKSTEP_LAUNCH((sum_short_rows<what, From, To>), blocks_for(step.outer * kLanes), kThreads, 0, stream, x,
                    step.outer, step.n, factor, out, accumulate);
  else
    LOCKSTEP_LAUNCH((sum_long_rows<what, From, To>), blocks_for(step.outer, 1), kThreads, 0, stream, x, step.outer,
                    whole, factor, out, accumulate);
}

// The last step writes `y` in its own type.
template <Summed what, typename From>
void finish_sum(const From* x, const ReductionStep* step, float factor, Out y, Stream& stream) {
  with_float(y.dtype, [&]<typename To>(To*) {
    if (step != nullptr)
      launch_step<what>(x, *step, factor, y.as<To>(), y.accumulate, stream);
    else
      LOCKSTEP_LAUNCH((scale_into<what, From, To>), blocks_for(y.count()), kThreads, 0, stream, x, y.count(), factor,
                      y.as<To>(), y.accumulate);
  });
}

template <Summed what, typename From>
void run_sum(const From* x, const std::vector<ReductionStep>& steps, float factor, Out y, Stream& stream) {
  if (steps.size() < 2) return finish_sum<what>(x, steps.empty() ? nullptr : &steps[0], factor, y, stream);
  // All steps except the last write to scratch memory: the first step reads x, each other one reads the result of the
  // previous one.
  const std::size_t bytes =
      static_cast<std::size_t>(std::max<Index>(steps[0].outer * steps[0].inner, 1)) * sizeof(float);
  const Scratch even(stream, bytes), odd(stream, bytes);
  launch_step<what>(x, steps[0], 1.0F, even.as<float>(), false, stream);
  const float* from = even.as<float>();
  for (std::size_t i = 1; i + 1 < steps.size(); ++i) {
    auto* const to = (i % 2 == 0 ? even : odd).as<float>();
    launch_step<Summed::kValue>(from, steps[i], 1.0F, to, false, stream);
    from = to;
  }
  finish_sum<Summed::kValue>(from, &steps.back(), factor, y, stream);
}

template <Summed what> void sum_of(In x, float factor, Out y, Stream& stream) {
  if (y.count() == 0) return;
  with_float(x.dtype, [&]<typename From>(From*) {
    run_sum<what>(x.as<From>(), reduction_steps(x.shape, y.shape), factor, y, stream);
  });
}

void absolute_sum(bool squares, In x, float factor, Out y, Stream& stream) {
  (squares ? sum_of<Summed::kSquare> : sum_of<Summed::kMagnitude>)(x, factor, y, stream);
}

// One block per row: y (rows) = the products of x (rows, n), in double.
template <typename T> __global__ void multiply_rows(const T* x, Index rows, Index n, T* y) {
  __shared__ double products[kThreads];
  for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
    double product = 1;
    for (Index i = threadIdx.x; i < n; i += kThreads) product *= static_cast<double>(widen(x[row * n + i]));
    products[threadIdx.x] = product;
    __syncthreads();
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) products[threadIdx.x] *= products[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) write(y[row], static_cast<float>(products[0]));
    __syncthreads();
  }
}

// One thread per column: y (outer, inner) of x (outer, n, inner).
template <typename T> __global__ void multiply_columns(const T* x, Index outer, Index n, Index inner, T* y) {
  for (Index i = first_item(); i < outer * inner; i += stride_of_grid()) {
    const T* const column = x + i / inner * n * inner + i % inner;
    double product = 1;
    for (Index k = 0; k < n; ++k) product *= static_cast<double>(widen(column[k * inner]));
    write(y[i], static_cast<float>(product));
  }
}

void prod(In x, Out y, Stream& stream) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  if (y.count() == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    if (inner == 1)
      LOCKSTEP_LAUNCH((multiply_rows<T>), blocks_for(outer, 1), kThreads, 0, stream, x.as<T>(), outer, n, y.as<T>());
    else
      LOCKSTEP_LAUNCH((multiply_columns<T>), blocks_for(outer * inner), kThreads, 0, stream, x.as<T>(), outer, n, inner,
                      y.as<T>());
  });
}

// The product of factors that are not 0, and how many are 0.
struct NonzeroProduct {
  double product = 1;
  Index zeros = 0;
  __device__ void add(float factor) {
    if (factor == 0)
      ++zeros;
    else
      product *= static_cast<double>(factor);
  }
  __device__ float gradient(float factor, float y_grad) const {
    const double scaled = product * static_cast<double>(y_grad);
    return static_cast<float>(zeros == 0                  ? scaled / static_cast<double>(factor)
                              : zeros == 1 && factor == 0 ? scaled
                                                          : 0);
  }
};

// One block per row.
template <typename T> __global__ void product_gradients_of_rows(const T* x, const T* y_grad, Index rows, Index n,
                                                                T* x_grad, bool accumulate) {
  __shared__ double products[kThreads];
  __shared__ Index zeros[kThreads];
  for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
    NonzeroProduct of;
    for (Index i = threadIdx.x; i < n; i += kThreads) of.add(widen(x[row * n + i]));
    products[threadIdx.x] = of.product, zeros[threadIdx.x] = of.zeros;
    __syncthreads();
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) {
        products[threadIdx.x] *= products[threadIdx.x + half];
        zeros[threadIdx.x] += zeros[threadIdx.x + half];
      }
      __syncthreads();
    }
    of.product = products[0], of.zeros = zeros[0];
    for (Index i = threadIdx.x; i < n; i += kThreads)
      store(x_grad[row * n + i], of.gradient(widen(x[row * n + i]), widen(y_grad[row])), accumulate);
    __syncthreads();
  }
}

// One thread per column.
template <typename T> __global__ void product_gradients_of_columns(const T* x, const T* y_grad, Index outer, Index n,
                                                                   Index inner, T* x_grad, bool accumulate) {
  for (Index i = first_item(); i < outer * inner; i += stride_of_grid()) {
    const Index first = i / inner * n * inner + i % inner;
    NonzeroProduct of;
    for (Index k = 0; k < n; ++k) of.add(widen(x[first + k * inner]));
    for (Index k = 0; k < n; ++k)
      store(x_grad[first + k * inner], of.gradient(widen(x[first + k * inner]), widen(y_grad[i])), accumulate);
  }
}

void prod_backward(In x, In y_grad, Out x_grad, Stream& stream) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  if (x.count() == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    if (inner == 1)
      LOCKSTEP_LAUNCH((product_gradients_of_rows<T>), blocks_for(outer, 1), kThreads, 0, stream, x.as<T>(),
                      y_grad.as<T>(), outer, n, x_grad.as<T>(), x_grad.accumulate);
    else
      LOCKSTEP_LAUNCH((product_gradients_of_columns<T>), blocks_for(outer * inner), kThreads, 0, stream, x.as<T>(),
                      y_grad.as<T>(), outer, n, inner, x_grad.as<T>(), x_grad.accumulate);
  });
}

// A candidate for a maximum or minimum. Among equal values the first is chosen, and NaN comes before any number.
struct Candidate {
  float value;
  Index place;
};
template <bool is_min> __device__ bool is_better(const Candidate& a, const Candidate& b) {
  const bool a_nan = isnan(a.value), b_nan = isnan(b.value);
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.value != b.value) return is_min ? a.value < b.value : a.value > b.value;
  return a.place < b.place;
}

// One block per part of a row: its best candidate, in thread 0. x (rows, n); `places`: the positions of x's elements in
// the original array, null if x is the original array.
template <bool is_min, typename T>
__device__ Candidate best_of_part(const T* x, const Index* places, Index begin, Index end) {
  __shared__ float values[kThreads];
  __shared__ Index found[kThreads];
  Candidate best{0, -1};
  for (Index i = begin + threadIdx.x; i < end; i += kThreads) {
    const Candidate next{widen(x[i]), places == nullptr ? i - begin : places[i]};
    if (best.place < 0 || is_better<is_min>(next, best)) best = next;
  }
  values[threadIdx.x] = best.value;
  found[threadIdx.x] = best.place;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < static_cast<unsigned>(half)) {
      const Candidate other{values[threadIdx.x + half], found[threadIdx.x + half]};
      if (other.place >= 0 && (best.place < 0 || is_better<is_min>(other, best))) best = other;
      values[threadIdx.x] = best.value;
      found[threadIdx.x] = best.place;
    }
    __syncthreads();
  }
  return best;
}

template <bool is_min, typename From, typename To>
__global__ void extreme_rows(const From* x, const Index* places, Index rows, Cut cut, To* values, Index* indices) {
  for (Index block = blockIdx.x; block < rows * cut.parts; block += gridDim.x) {
    const Index row = block / cut.parts, begin = cut.first(block % cut.parts), end = cut.first(block % cut.parts + 1);
    const Candidate best = best_of_part<is_min>(x, places, row * cut.n + begin, row * cut.n + end);
    if (threadIdx.x == 0) {
      write(values[block], best.value);
      indices[block] = places == nullptr ? begin + best.place : best.place;
    }
    __syncthreads();
  }
}

// One thread per column.
template <bool is_min, typename T, typename Number>
__global__ void extreme_columns(const T* x, Index outer, Index n, Divisor<Number> columns, T* values, Index* indices) {
  const Index inner = columns.value();
  for (Index i = first_item(); i < outer * inner; i += stride_of_grid()) {
    const Divided<Number> at = columns.divide(static_cast<Number>(i));
    const T* const column = x + at.quotient * n * inner + at.remainder;
    Candidate best{widen(column[0]), 0};
    for (Index k = 1; k < n; ++k) {
      const Candidate next{widen(column[k * inner]), k};
      if (is_better<is_min>(next, best)) best = next;
    }
    write(values[i], best.value);
    indices[i] = best.place;
  }
}

template <bool is_min, typename T>
void run_extreme(const T* x, const ReductionStep& shape, T* values, Index* indices, Stream& stream) {
  const Index rows = shape.outer, parts = shape.inner == 1 ? parts_of(shape) : 1;
  const Index* const no_places = nullptr;
  if (shape.inner != 1) {
    with_index_of(rows * shape.inner, [&]<typename Number>(Number) {
      LOCKSTEP_LAUNCH((extreme_columns<is_min, T, Number>), blocks_for(rows * shape.inner), kThreads, 0, stream, x,
                      rows, shape.n, Divisor<Number>(shape.inner), values, indices);
    });
  } else if (parts == 1) {
    LOCKSTEP_LAUNCH((extreme_rows<is_min, T, T>), blocks_for(rows, 1), kThreads, 0, stream, x, no_places, rows,
                    Cut{shape.n, 1}, values, indices);
  } else {
    const auto count = static_cast<std::size_t>(rows * parts);
    const Scratch best(stream, count * sizeof(float)), places(stream, count * sizeof(Index));
    LOCKSTEP_LAUNCH((extreme_rows<is_min, T, float>), blocks_for(rows * parts, 1), kThreads, 0, stream, x, no_places,
                    rows, Cut{shape.n, parts}, best.as<float>(), places.as<Index>());
    LOCKSTEP_LAUNCH((extreme_rows<is_min, float, T>), blocks_for(rows, 1), kThreads, 0, stream, best.as<const float>(),
                    places.as<const Index>(), rows, Cut{parts, 1}, values, indices);
  }
}

template <bool is_min> void extreme(In x, Out values, Out indices, Stream& stream) {
  if (values.count() == 0) return;
  const ReductionStep shape{x.shape[0], x.shape[1], x.shape[2]};
  with_float(x.dtype, [&]<typename T>(T*) {
    run_extreme<is_min>(x.as<T>(), shape, values.as<T>(), indices.as<Index>(), stream);
  });
}

}  // namespace

void use_reduction(KernelTable& table) {
  table.sum = sum_of<Summed::kValue>;
  table.absolute_sum = absolute_sum;
  table.max = extreme<false>;
  table.min = extreme<true>;
  table.prod = prod;
  table.prod_backward = prod_backward;
}

}  // namespace lockstep::cuda
