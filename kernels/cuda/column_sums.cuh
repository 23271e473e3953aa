// Kernels over a matrix (rows, columns) in which a thread stays in its columns, so that it computes once what depends
// only on them and never divides; and sums of columns, in two steps of fixed order without atomics, so that they are
// reproducible bit for bit: blocks sum parts of the rows, then one warp per column adds the parts.
#pragma once

#include <bit>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/warp.cuh"

namespace lockstep::cuda {

constexpr int kColumnPack = 4;           // adjacent columns of a thread, if their number and the pointers allow it
constexpr Index kMostPartBlocks = 1024;  // of the first step: enough to fill a GPU, few enough to add

// Calls `call` with the columns of a thread: call.operator()<pack>().
template <typename Call> void with_column_pack(Index columns, bool aligned, Call&& call) {
  if (aligned && columns % kColumnPack == 0)
    call.template operator()<kColumnPack>();
  else
    call.template operator()<1>();
}

// Threads of a block are (packs of columns, rows). A warp reads several rows if these are short.
struct ColumnGrid {
  ColumnGrid(Index rows, Index columns, int pack, Index rows_of_thread = 8, Index most_blocks = 16 * 1024) {
    const Index packs = (columns + pack - 1) / pack;
    Index wide = std::min<Index>(32, static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(packs))));
    const auto covered = [&](Index width) { return (packs + width - 1) / width * width; };
    for (Index narrow = wide / 2; narrow >= 8; narrow /= 2)
      if (8 * covered(narrow) < 7 * covered(wide)) wide = narrow;  // at least an eighth of the threads would be idle
    const Index of_columns = covered(wide) / wide, of_rows = rows / (kThreads / wide * rows_of_thread);
    threads = dim3(static_cast<unsigned>(wide), static_cast<unsigned>(kThreads / wide));
    blocks = dim3(static_cast<unsigned>(of_columns),
                  static_cast<unsigned>(std::clamp<Index>(of_rows, 1, std::max<Index>(1, most_blocks / of_columns))));
  }
  dim3 blocks, threads;
};

template <int pack> __device__ Index column_of_thread() {
  return (static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) * pack;
}
__device__ inline Index row_of_thread() { return static_cast<Index>(blockIdx.y) * blockDim.y + threadIdx.y; }
__device__ inline Index rows_of_grid() { return static_cast<Index>(gridDim.y) * blockDim.y; }

// The first step: sums (arrays, parts, columns), where part p has the sums over the rows of blocks p. add(row, column,
// few) adds the terms of a row to few[array][k], k = 0 .. pack - 1; these are floats for a few rows and then added to
// `Sum`, so that double costs little.
template <int arrays, int pack, typename Sum, typename Add>
__device__ void sum_part_of_rows(Index rows, Index columns, Sum* sums, Add&& add) {
  constexpr int kFewRows = 8;
  __shared__ Sum shared[kThreads][pack];
  const Index column = column_of_thread<pack>(), step = rows_of_grid();
  Sum own[arrays][pack] = {};
  float few[arrays][pack] = {};
  const auto add_few = [&] {
#pragma unroll
    for (int array = 0; array < arrays; ++array)
#pragma unroll
      for (int k = 0; k < pack; ++k) own[array][k] += few[array][k], few[array][k] = 0;
  };
  Index row = column < columns ? row_of_thread() : rows;
  for (; row + (kFewRows - 1) * step < rows; row += kFewRows * step) {  // unrolled, so that loads overlap
#pragma unroll 4
    for (int i = 0; i < kFewRows; ++i) add(row + i * step, column, few);
    add_few();
  }
  for (; row < rows; row += step) add(row, column, few);
  add_few();
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int array = 0; array < arrays; ++array) {
    for (int k = 0; k < pack; ++k) shared[thread][k] = own[array][k];
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y < half)
        for (int k = 0; k < pack; ++k) shared[thread][k] += shared[thread + half * blockDim.x][k];
    }
    Sum* const to = sums + (static_cast<Index>(array) * gridDim.y + blockIdx.y) * columns + column;
    for (int k = 0; k < pack && threadIdx.y == 0 && column < columns; ++k) to[k] = shared[thread][k];
    __syncthreads();  // all threads have read it before the next array
  }
}

// The second step, by a block of kThreads: each warp gets the sum over the parts of column `first` + its number; 0
// beyond the last column. All threads must call it.
template <typename Sum> __device__ Sum sum_of_parts(const Sum* sums, Index parts, Index columns, Index first) {
  __shared__ Sum shared[kWarpsOfBlock][32 + 1];
  const int nearby = threadIdx.x % kWarpsOfBlock, lane = threadIdx.x / kWarpsOfBlock;  // reads adjacent columns
  Sum sum = 0;
  if (first + nearby < columns)
    for (Index part = lane; part < parts; part += 32) sum += sums[part * columns + first + nearby];
  shared[nearby][lane] = sum;
  __syncthreads();
  const Sum part = shared[threadIdx.x / 32][threadIdx.x % 32];
  __syncthreads();
  return warp_sum(part);
}

// Visits all columns, one per warp: visit(the block's first column, the warp's column).
template <typename Visit> __device__ void for_columns_of_warps(Index columns, Visit&& visit) {
  for (Index block = blockIdx.x; block * kWarpsOfBlock < columns; block += gridDim.x)
    visit(block * kWarpsOfBlock, block * kWarpsOfBlock + threadIdx.x / 32);
}

// The gradient of a parameter; null: not wanted.
struct ColumnGradient {
  float* data;
  bool accumulate;
};
template <int arrays> struct ColumnGradients { ColumnGradient of[arrays]; };

template <int arrays>
__global__ void store_column_sums(const float* sums, Index parts, Index columns, ColumnGradients<arrays> gradients) {
  for_columns_of_warps(columns, [&](Index first, Index column) {
    for (int array = 0; array < arrays; ++array) {
      const ColumnGradient to = gradients.of[array];
      if (to.data == nullptr) continue;
      const float sum = sum_of_parts(sums + array * parts * columns, parts, columns, first);
      if (threadIdx.x % 32 == 0 && column < columns) store(to.data[column], sum, to.accumulate);
    }
  });
}

// The grid of the first step, and the memory of its sums.
template <typename Sum> class ColumnSums {
 public:
  ColumnSums(Index rows, Index columns, int pack, int arrays, Stream& stream)
      : grid_(rows, columns, pack, 8, kMostPartBlocks),
        columns_(columns),
        stream_(stream),
        memory_(stream, static_cast<std::size_t>(arrays * parts() * columns) * sizeof(Sum)) {}
  const ColumnGrid& grid() const { return grid_; }
  Index parts() const { return grid_.blocks.y; }
  Sum* sums() const { return memory_.template as<Sum>(); }
  // The second step, for sums that are gradients.
  template <int arrays> void store(const ColumnGradients<arrays>& gradients) const {
    LOCKSTEP_LAUNCH((store_column_sums<arrays>), blocks_for(columns_, kWarpsOfBlock), kThreads, 0, stream_, sums(),
                    parts(), columns_, gradients);
  }

 private:
  ColumnGrid grid_;
  const Index columns_;
  Stream& stream_;
  const Scratch memory_;
};

}  // namespace lockstep::cuda
