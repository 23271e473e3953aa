// Dropout: one thread draws the random words of four elements.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fast_division.cuh"
#include "kernels/dropout_rule.h"

namespace lockstep::cuda {

namespace {

// Processes each row separately, because rows may begin within a block of random words; `blocks` suffice for a row.
template <typename T, typename Number> __global__ void drop(const T* x, DropoutParams params, DropoutRule rule,
                                                            DropoutRows rows, Divisor<Number> blocks, T* y,
                                                            bool accumulate) {
  for (Index item = first_item(); item < rows.count * blocks.value(); item += stride_of_grid()) {
    const Divided<Number> at = blocks.divide(static_cast<Number>(item));
    const Index first = params.first_element + at.quotient * rows.numbers;
    const Index block = first / 4 + at.remainder, begin = at.quotient * rows.elements;
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
    with_index_of(rows.count * blocks, [&]<typename Number>(Number) {
      LOCKSTEP_LAUNCH((drop<T, Number>), blocks_for(rows.count * blocks), kThreads, 0, stream, x.as<T>(), params,
                      dropout_rule(params), rows, Divisor<Number>(blocks), y.as<T>(), y.accumulate);
    });
  });
}

}  // namespace

void use_dropout(KernelTable& table) { table.dropout = dropout; }

}  // namespace lockstep::cuda
