// Attention on a GPU. 16-bit types are computed by cuDNN, on tensor cores (cudnn_attention.h); float32, and what cuDNN
// does not take, by our own kernels without them (float_attention.h).
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/float_attention.h"
#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

namespace {

void clear_gradient(Out grad, Stream& stream) {
  if (grad && !grad.accumulate && grad.count() > 0)
    LOCKSTEP_CUDA(
        cudaMemsetAsync(grad.data, 0, static_cast<std::size_t>(grad.count()) * size_of(grad.dtype), native(stream)));
}

void attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty()) return clear_gradient(y, stream);
  float_attention(params, q, k, v, y, log_sums, stream);
}

void attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                        Out k_grad, Out v_grad, Stream& stream) {
  if (attention_shape(q, k).empty()) {
    for (const OutputView* grad : {&q_grad, &k_grad, &v_grad}) clear_gradient(*grad, stream);
    return;
  }
  if (!q_grad && !k_grad && !v_grad) return;
  float_attention_backward(params, q, k, v, y, log_sums, y_grad, q_grad, k_grad, v_grad, stream);
}

}  // namespace

void use_attention(KernelTable& table) {
  table.attention = attention;
  table.attention_backward = attention_backward;
}

}  // namespace lockstep::cuda
