// Dropout: one thread draws the random words of four elements.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/dropout_rule.h"

namespace lockstep::cuda {

namespace {

// Processes each row separately, because rows may begin within a block of random words; `blocks` suffice for a row.
template <typename T> __global__ void drop(const T* x, DropoutParams params, DropoutRule rule, DropoutRows rows,
                                           Index blocks, T* y, bool accumulate) {
  for (Index item = first_item(); item < rows.count * blocks; item += stride_of_grid()) {
    const Index row = rows.count == 1 ? 0 : item / blocks, first = params.first_element + row * rows.numbers;
    const Index block = first / 4 + item - row * blocks, begin = row * rows.elements;
    const PhiloxBlock random = philox_block(params.seed, params.stream, static_cast<std::uint64_t>(block));
    for (int word = 0; word < 4; ++word) {
      const Index i = block * 4 + word - first;
      if (i >= 0 && i < rows.elements)
        store(y[begin + i], random.words[word] >= rule.threshold ? widen(x[begin + i]) * rule.factor : 0.0F,
              accumulate);
    }
  }
}

void dropout(const DropoutParams& params, In x, Out y, Stream& stream) {
  const Index count = x.count();
  if (count == 0) return;
  const DropoutRows rows = dropout_rows(params, count);
  const Index blocks = rows.elements / 4 + 2;
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((drop<T>), blocks_for(rows.count * blocks), kThreads, 0, stream, x.as<T>(), params,
                    dropout_rule(params), rows, blocks, y.as<T>(), y.accumulate);
  });
}

}  // namespace

void use_dropout(KernelTable& table) { table.dropout = dropout; }

}  // namespace lockstep::cuda
