// The threads that share a row: a warp, or a block for long rows. Each takes packs of 16 bytes where the row's address
// allows it, in an order that depends only on the row's length and alignment.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/warp.cuh"

namespace lockstep::cuda {

inline constexpr Index kLongRow = 1024;  // elements from which a block takes a row

struct WarpOfRow {
  static constexpr int kSize = 32;
  static constexpr int kRowsOfBlock = kWarpsOfBlock;
  __device__ static int thread() { return threadIdx.x % 32; }
  __device__ static Index first_row() { return first_row_of_warp(); }
  __device__ static Index row_step() { return warps_of_grid(); }
  // All threads of the row get the result.
  __device__ static float sum(float value) { return warp_sum(value); }
  __device__ static float largest(float value) { return warp_max(value); }
};

struct BlockOfRow {
  static constexpr int kSize = kThreads;
  static constexpr int kRowsOfBlock = 1;
  __device__ static int thread() { return threadIdx.x; }
  __device__ static Index first_row() { return blockIdx.x; }
  __device__ static Index row_step() { return gridDim.x; }
  __device__ static float sum(float value) {
    return combined(warp_sum(value), 0, [](float a, float b) { return a + b; });
  }
  __device__ static float largest(float value) {
    return combined(warp_max(value), -INFINITY, [](float a, float b) { return fmaxf(a, b); });
  }

 private:
  template <typename Combine> __device__ static float combined(float of_warp, float start, Combine&& combine) {
    __shared__ float warps[kWarpsOfBlock];
    __syncthreads();  // the last result has been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    for (int warp = 0; warp < kWarpsOfBlock; ++warp) start = combine(start, warps[warp]);
    return start;
  }
};

// Launches a kernel template for warps or blocks, by the rows' length.
template <typename Launch> void with_row_group(Index rows, Index length, Launch&& launch) {
  if (length < kLongRow)
    launch(WarpOfRow(), blocks_for(rows, WarpOfRow::kRowsOfBlock));
  else
    launch(BlockOfRow(), blocks_for(rows, 1));
}

// A row in three parts: elements before the first whole pack, packs, elements after the last one.
template <typename T> struct RowParts {
  static constexpr int kOf = 16 / sizeof(T);
  Index head, packs;

  __device__ RowParts(const T* row, Index length) {
    const auto misplaced = static_cast<Index>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
    head = misplaced == 0 ? 0 : min(length, kOf - misplaced);
    packs = (length - head) / kOf;
  }
  __device__ Index tail() const { return head + packs * kOf; }
};

// Calls visit(first, values, count) for the thread's parts of a row, widened: `count` values that begin at `first`.
template <typename Group, typename T, typename Visit>
__device__ void visit_row(const T* row, Index length, Visit&& visit) {
  const RowParts<T> parts(row, length);
  constexpr int kOf = RowParts<T>::kOf;
  float values[kOf];
  const auto visit_one = [&](Index at) {
    values[0] = widen(row[at]);
    visit(at, values, 1);
  };
  if (Group::thread() < parts.head) visit_one(Group::thread());
  for (Index i = Group::thread(); i < parts.packs; i += Group::kSize) {
    const Index first = parts.head + i * kOf;
    const auto pack = *reinterpret_cast<const Pack<T, kOf>*>(row + first);
#pragma unroll
    for (int j = 0; j < kOf; ++j) values[j] = widen(pack.values[j]);
    visit(first, values, kOf);
  }
  if (parts.tail() + Group::thread() < length) visit_one(parts.tail() + Group::thread());
}

// Writes, or adds, `count` values of a row as visit_row() passes them; whole packs if `out` is aligned like the row.
template <typename T> __device__ void store_part(T* out, Index first, const float* values, int count, bool accumulate) {
  constexpr int kOf = RowParts<T>::kOf;
  T* const to = out + first;
  if (count != kOf || reinterpret_cast<std::uintptr_t>(to) % 16 != 0) {
    for (int j = 0; j < count; ++j) store(to[j], values[j], accumulate);
    return;
  }
  Pack<T, kOf> pack;
  if (accumulate) pack = *reinterpret_cast<const Pack<T, kOf>*>(to);
#pragma unroll
  for (int j = 0; j < kOf; ++j) store(pack.values[j], values[j], accumulate);
  *reinterpret_cast<Pack<T, kOf>*>(to) = pack;
}

}  // namespace lockstep::cuda
