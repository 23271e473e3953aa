// Embeddings. Backward: blocks share the rows of the weight; each reads all indices, lists those of its rows, and adds
// their gradients in the order of the indices. There is no sorting and there are no atomics, so results are
// reproducible bit for bit.
#include <bit>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fast_division.cuh"
#include "kernels/cuda/warp.cuh"

namespace lockstep::cuda {

namespace {

// A thread copies packs of a row.
template <typename T, int pack, typename Number> __global__ void gather_rows(const float* weight, const Index* indices,
                                                                             Index words, Divisor<Number> packs,
                                                                             Index items, T* y) {
  for (Index i = first_item(); i < items; i += stride_of_grid()) {
    const Divided<Number> at = packs.divide(static_cast<Number>(i));
    const Index word = indices[at.quotient];
    const bool is_inside = word >= 0 && word < words;
    Pack<float, pack> row;
    if (is_inside) row = pack_at<pack>(weight + (word * packs.value() + at.remainder) * pack);
    Pack<T, pack> result;
#pragma unroll
    for (int k = 0; k < pack; ++k) write(result.values[k], is_inside ? row.values[k] : nanf(""));
    pack_at<pack>(y + i * pack) = result;
  }
}

constexpr Index kMostWordBlocks = 1024;  // each reads all indices

// The number of earlier threads of the block with `is_mine`; `total` is that of all threads. All threads must call it.
__device__ int mine_before(bool is_mine, int* total) {
  __shared__ int of_warps[kWarpsOfBlock];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int count = is_mine ? 1 : 0;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, count, distance);
    if (lane >= distance) count += below;
  }
  if (lane == 31) of_warps[warp] = count;
  __syncthreads();
  int before = is_mine ? count - 1 : count;
  *total = 0;
  for (int other = 0; other < kWarpsOfBlock; ++other) {
    if (other < warp) before += of_warps[other];
    *total += of_warps[other];
  }
  return before;
}

struct EmbeddingRows {
  Index words, words_of_block, width;
  int lanes;  // threads that share a row, a power of two; the others add rows of other words at the same time
};

template <typename T, int pack> __global__ void add_rows(const T* y_grad, const Index* indices, Index count,
                                                         Index padding, EmbeddingRows of, float* weight_grad,
                                                         bool accumulate) {
  __shared__ Index positions[kThreads], words[kThreads];  // the list
  const int groups = kThreads / of.lanes, group = threadIdx.x / of.lanes, lane = threadIdx.x % of.lanes;
  for (Index begin = blockIdx.x * of.words_of_block; begin < of.words; begin += gridDim.x * of.words_of_block) {
    const Index end = min(begin + of.words_of_block, of.words);
    if (!accumulate)
      for (Index i = begin * of.width + threadIdx.x; i < end * of.width; i += kThreads) weight_grad[i] = 0;
    for (Index first = 0; first < count; first += kThreads) {
      const Index at = first + threadIdx.x, word = at < count ? indices[at] : -1;
      const bool is_mine = word >= begin && word < end && word != padding;
      if (__syncthreads_or(is_mine ? 1 : 0) == 0) continue;
      int total = 0;
      const int before = mine_before(is_mine, &total);
      if (is_mine) positions[before] = at, words[before] = word;
      __syncthreads();
      for (int i = 0; i < total; ++i) {
        if ((words[i] & (groups - 1)) != group) continue;
        for (Index d = lane * pack; d < of.width; d += of.lanes * pack) {
          const auto grads = pack_at<pack>(y_grad + positions[i] * of.width + d);
          auto& sums = pack_at<pack>(weight_grad + words[i] * of.width + d);
          auto values = sums;
#pragma unroll
          for (int k = 0; k < pack; ++k) values.values[k] += widen(grads.values[k]);
          sums = values;
        }
      }
    }
    __syncthreads();  // the list is read before the next rows' is written
  }
}

constexpr int kEmbeddingPack = 4;

template <typename T> bool is_row_in_packs(const float* weight, const T* rows, Index width) {
  return width % kEmbeddingPack == 0 && is_aligned_to_pack<float, kEmbeddingPack>(weight) &&
         is_aligned_to_pack<T, kEmbeddingPack>(rows);
}

void embedding(In weight, In indices, Out y, Stream& stream) {
  const Index words = weight.shape[0], width = weight.shape[1], count = indices.count() * width;
  if (count == 0) return;
  with_float(y.dtype, [&]<typename T>(T*) {
    const auto gather = [&]<int pack>() {
      with_index_of(count / pack, [&]<typename Number>(Number) {
        LOCKSTEP_LAUNCH((gather_rows<T, pack, Number>), blocks_for(count / pack), kThreads, 0, stream, weight.floats(),
                        indices.as<Index>(), words, Divisor<Number>(width / pack), count / pack, y.as<T>());
      });
    };
    if (is_row_in_packs<T>(weight.floats(), y.as<T>(), width))
      gather.template operator()<kEmbeddingPack>();
    else
      gather.template operator()<1>();
  });
}

void embedding_backward(In y_grad, In indices, Index padding, Out weight_grad, Stream& stream) {
  const Index words = weight_grad.shape[0], width = weight_grad.shape[1];
  if (words * width == 0) return;
  const Index words_of_block = (words + kMostWordBlocks - 1) / kMostWordBlocks;
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    const auto add = [&]<int pack>() {
      const auto lanes = std::bit_ceil(static_cast<std::uint64_t>(width / pack));
      const EmbeddingRows of{words, words_of_block, width, static_cast<int>(std::min<std::uint64_t>(lanes, kThreads))};
      LOCKSTEP_LAUNCH((add_rows<T, pack>), blocks_for(words, words_of_block), kThreads, 0, stream, y_grad.as<T>(),
                      indices.as<Index>(), indices.count(), padding, of, weight_grad.floats(), weight_grad.accumulate);
    };
    if (is_row_in_packs<T>(weight_grad.floats(), y_grad.as<T>(), width))
      add.template operator()<kEmbeddingPack>();
    else
      add.template operator()<1>();
  });
}

}  // namespace

void use_embedding(KernelTable& table) {
  table.embedding = embedding;
  table.embedding_backward = embedding_backward;
}

}  // namespace lockstep::cuda
