// Running sums and sorted lines, along the middle dimension of (outer, n, inner).
//
// A line is sorted as numbers whose order is the wanted one (kernels/order_bits.h), which also contain the positions,
// padded to a power of 2 (Batcher 1968, bitonic sort): for k = 2, 4, ... neighbouring runs of k / 2, sorted in opposite
// directions, are merged by exchanges over distances k / 2, k / 4, ..., 1. Distances within a tile are exchanged in
// shared memory.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/order_bits.h"

namespace lockstep::cuda {

namespace {

constexpr int kScanWarps = kThreads / 32;

// The sum over this thread's value and those of the earlier threads of the block; `total` is that of all.
__device__ inline double sum_up_to_thread(double value, double& total) {
  __shared__ double of_warps[kScanWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const double before = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += before;
  }
  if (lane == 31) of_warps[warp] = value;
  __syncthreads();
  total = 0;
  double before = 0;
  for (int each = 0; each < kScanWarps; ++each) {
    if (each == warp) before = total;
    total += of_warps[each];
  }
  __syncthreads();
  return before + value;
}

// One block per row, which adds a tile at a time to the sum of the earlier ones; `reversed` from the end.
template <typename T>
__global__ void cumsum_rows(const T* x, Index rows, Index n, bool reversed, T* y, bool accumulate) {
  for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
    double before = 0;
    for (Index begin = 0; begin < n; begin += kThreads) {
      const Index k = begin + threadIdx.x, at = row * n + (reversed ? n - 1 - k : k);
      double total = 0;
      const double sum = sum_up_to_thread(k < n ? static_cast<double>(widen(x[at])) : 0, total);
      if (k < n) store(y[at], static_cast<float>(before + sum), accumulate);
      before += total;
    }
  }
}

// One thread per column, or per short row.
template <typename T>
__global__ void cumsum_columns(const T* x, Index outer, Index n, Index inner, bool reversed, T* y, bool accumulate) {
  for (Index i = first_item(); i < outer * inner; i += stride_of_grid()) {
    const Index first = i / inner * n * inner + i % inner;
    double sum = 0;
    for (Index k = 0; k < n; ++k) {
      const Index at = first + (reversed ? n - 1 - k : k) * inner;
      sum += static_cast<double>(widen(x[at]));
      store(y[at], static_cast<float>(sum), accumulate);
    }
  }
}

void cumsum(bool reversed, In x, Out y, Stream& stream) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  constexpr Index kShort = 32;
  if (x.count() == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    if (inner == 1 && n > kShort)
      LOCKSTEP_LAUNCH((cumsum_rows<T>), blocks_for(outer, 1), kThreads, 0, stream, x.as<T>(), outer, n, reversed,
                      y.as<T>(), y.accumulate);
    else
      LOCKSTEP_LAUNCH((cumsum_columns<T>), blocks_for(outer * inner), kThreads, 0, stream, x.as<T>(), outer, n, inner,
                      reversed, y.as<T>(), y.accumulate);
  });
}

using Key = std::uint64_t;
constexpr Index kSortTile = 1024;

// Lines of n elements, padded to `padded` keys each.
struct Lines {
  Index count, n, inner, padded;
  __device__ Index first(Index line) const { return line / inner * n * inner + line % inner; }
};

template <typename T> __global__ void write_keys(const T* x, Lines lines, bool descending, Key* keys) {
  for (Index i = first_item(); i < lines.count * lines.padded; i += stride_of_grid()) {
    const Index line = i / lines.padded, place = i % lines.padded;
    keys[i] =
        place < lines.n ? order_of(widen(x[lines.first(line) + place * lines.inner]), descending, place) : ~Key{0};
  }
}

__device__ inline void exchange(Key& low, Key& high, bool ascends) {
  if ((low > high) != ascends) return;
  const Key key = low;
  low = high;
  high = key;
}

// The lower index of exchange number `pair` over a distance, which is a power of 2.
__device__ inline Index lower_of_pair(Index pair, Index distance) {
  return pair / distance * 2 * distance + pair % distance;
}

// All exchanges over one distance, for runs of `run`. Lines are powers of 2, so no exchange crosses from one to the
// next.
__global__ void exchange_far(Key* keys, Index pairs, Index padded, Index run, Index distance) {
  for (Index pair = first_item(); pair < pairs; pair += stride_of_grid()) {
    const Index low = lower_of_pair(pair, distance);
    exchange(keys[low], keys[low + distance], ((low % padded) & run) == 0);
  }
}

// One block per tile: for each run from `first_run` to `last_run`, the exchanges over distances inside the tile.
__global__ void exchange_near(Key* keys, Index tiles, Index tile, Index padded, Index first_run, Index last_run) {
  __shared__ Key near[kSortTile];
  for (Index block = blockIdx.x; block < tiles; block += gridDim.x) {
    Key* const own = keys + block * tile;
    for (Index i = threadIdx.x; i < tile; i += kThreads) near[i] = own[i];
    __syncthreads();
    for (Index run = first_run; run <= last_run; run *= 2)
      for (Index distance = min(run, tile) / 2; distance > 0; distance /= 2) {
        for (Index pair = threadIdx.x; pair < tile / 2; pair += kThreads) {
          const Index low = lower_of_pair(pair, distance);
          exchange(near[low], near[low + distance], (((block * tile + low) % padded) & run) == 0);
        }
        __syncthreads();
      }
    for (Index i = threadIdx.x; i < tile; i += kThreads) own[i] = near[i];
    __syncthreads();
  }
}

// values, indices (outer, kept, inner)
template <typename T>
__global__ void write_sorted(const T* x, Lines lines, const Key* keys, Index kept, T* values, Index* indices) {
  for (Index i = first_item(); i < lines.count * kept; i += stride_of_grid()) {
    const Index line = i / kept,
                at = line / lines.inner * kept * lines.inner + i % kept * lines.inner + line % lines.inner;
    const auto place = static_cast<Index>(keys[line * lines.padded + i % kept] & 0xffffffffU);
    values[at] = x[lines.first(line) + place * lines.inner];
    indices[at] = place;
  }
}

void sort_keys(Key* keys, const Lines& lines, Stream& stream) {
  const Index all = lines.count * lines.padded, tile = std::min(lines.padded, kSortTile), tiles = all / tile;
  LOCKSTEP_LAUNCH(exchange_near, blocks_for(tiles, 1), kThreads, 0, stream, keys, tiles, tile, lines.padded, Index{2},
                  tile);
  for (Index run = 2 * tile; run <= lines.padded; run *= 2) {
    for (Index distance = run / 2; distance >= tile; distance /= 2)
      LOCKSTEP_LAUNCH(exchange_far, blocks_for(all / 2), kThreads, 0, stream, keys, all / 2, lines.padded, run,
                      distance);
    LOCKSTEP_LAUNCH(exchange_near, blocks_for(tiles, 1), kThreads, 0, stream, keys, tiles, tile, lines.padded, run,
                    run);
  }
}

void sort(bool descending, In x, Out values, Out indices, Stream& stream) {
  if (values.count() == 0) return;
  Lines lines{x.shape[0] * x.shape[2], x.shape[1], x.shape[2], 1};
  while (lines.padded < lines.n) lines.padded *= 2;
  const Index all = lines.count * lines.padded, kept = values.shape[1];
  const Scratch memory(stream, static_cast<std::size_t>(all) * sizeof(Key));
  Key* const keys = memory.as<Key>();
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((write_keys<T>), blocks_for(all), kThreads, 0, stream, x.as<T>(), lines, descending, keys);
    if (lines.n > 1) sort_keys(keys, lines, stream);
    LOCKSTEP_LAUNCH((write_sorted<T>), blocks_for(lines.count * kept), kThreads, 0, stream, x.as<T>(), lines, keys,
                    kept, values.as<T>(), indices.as<Index>());
  });
}

}  // namespace

void use_ordered(KernelTable& table) {
  table.cumsum = cumsum;
  table.sort = sort;
}

}  // namespace lockstep::cuda
