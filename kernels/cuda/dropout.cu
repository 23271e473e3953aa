// Dropout: a thread draws the random words of four elements.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/dropout_rule.h"

namespace lockstep::cuda {

namespace {

template <typename T>
__global__ void drop(const T* x, DropoutParams params, DropoutRule rule, Index count, T* y, bool accumulate) {
  const Index last = params.first_element + count;
  for (Index block = params.first_element / 4 + first_item(); block * 4 < last; block += stride_of_grid()) {
    const PhiloxBlock random = philox_block(params.seed, params.stream, static_cast<std::uint64_t>(block));
    for (int word = 0; word < 4; ++word) {
      const Index i = block * 4 + word - params.first_element;
      if (i >= 0 && i < count) store(y[i], random.words[word] >= rule.threshold ? widen(x[i]) * rule.factor : 0.0F, accumulate);
    }
  }
}

void dropout(const DropoutParams& params, In x, Out y, Stream& stream) {
  const Index count = x.count();
  if (count == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((drop<T>), blocks_for(count / 4 + 2), kThreads, 0, stream, x.as<T>(), params, dropout_rule(params), count, y.as<T>(),
                    y.accumulate);
  });
}

}  // namespace

void use_dropout(KernelTable& table) { table.dropout = dropout; }

}  // namespace lockstep::cuda
