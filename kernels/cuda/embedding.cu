// Embeddings. Backward: each row of the weight has a block that reads all indices and adds the gradients of its row in
// their order. There is no sorting and there are no atomics, so results are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"

namespace lockstep::cuda {

namespace {

template <typename T>
__global__ void gather_rows(const float* weight, const Index* indices, Index words, Index width, Index count, T* y) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Index word = indices[i / width];
    write(y[i], word >= 0 && word < words ? weight[word * width + i % width] : nanf(""));
  }
}

template <typename T> __global__ void add_rows(const T* y_grad, const Index* indices, Index count, Index padding,
                                               Index words, Index width, float* weight_grad, bool accumulate) {
  __shared__ int mine[kThreads];
  for (Index word = blockIdx.x; word < words; word += gridDim.x) {
    float* const sum = weight_grad + word * width;
    if (!accumulate)
      for (Index d = threadIdx.x; d < width; d += kThreads) sum[d] = 0;
    for (Index first = 0; first < count && word != padding; first += kThreads) {
      const Index at = first + threadIdx.x;
      const int is_mine = at < count && indices[at] == word ? 1 : 0;
      mine[threadIdx.x] = is_mine;
      const bool any = __syncthreads_or(is_mine) != 0;
      for (int i = 0; i < kThreads && any; ++i)
        if (mine[i] != 0)
          for (Index d = threadIdx.x; d < width; d += kThreads) sum[d] += widen(y_grad[(first + i) * width + d]);
      __syncthreads();
    }
  }
}

void embedding(In weight, In indices, Out y, Stream& stream) {
  const Index words = weight.shape[0], width = weight.shape[1], count = indices.count() * width;
  if (count == 0) return;
  with_float(y.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((gather_rows<T>), blocks_for(count), kThreads, 0, stream, weight.floats(), indices.as<Index>(),
                    words, width, count, y.as<T>());
  });
}

void embedding_backward(In y_grad, In indices, Index padding, Out weight_grad, Stream& stream) {
  const Index words = weight_grad.shape[0], width = weight_grad.shape[1];
  if (words * width == 0) return;
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((add_rows<T>), blocks_for(words, 1), kThreads, 0, stream, y_grad.as<T>(), indices.as<Index>(),
                    indices.count(), padding, words, width, weight_grad.floats(), weight_grad.accumulate);
  });
}

}  // namespace

void use_embedding(KernelTable& table) {
  table.embedding = embedding;
  table.embedding_backward = embedding_backward;
}

}  // namespace lockstep::cuda
