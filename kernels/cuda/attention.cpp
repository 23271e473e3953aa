// Attention on a GPU. 16-bit types are computed by cuDNN, on tensor cores (cudnn_attention.h); float32, and what cuDNN
// does not take, by our own kernels without them (float_attention.h).
#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/float_attention.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

namespace {

// Whether to ask cuDNN. `operands`: those that are read, and written without scratch memory.
bool may_use_cudnn(const AttentionShape& s, DType type, std::initializer_list<const void*> operands) {
  return type != DType::kFloat32 && s.width % kCudnnWidthStep == 0 &&
         std::all_of(operands.begin(), operands.end(), is_aligned_for_cudnn);
}

// cuDNN overwrites gradients and needs aligned addresses; a gradient that accumulates, is not aligned, or is not wanted
// goes through scratch memory.
class CudnnGradient {
 public:
  CudnnGradient(Out wanted, In of, Stream& stream)
      : wanted_(wanted),
        is_direct_(wanted && !wanted.accumulate && is_aligned_for_cudnn(wanted.data)),
        memory_(stream, is_direct_ || !of ? 0 : static_cast<std::size_t>(of.count()) * size_of(of.dtype)),
        view_(is_direct_ ? wanted : OutputView(memory_.as<void>(), of.dtype, of.shape)) {}
  Out view() const { return view_; }
  void finish(Stream& stream) const {
    if (wanted_ && !is_direct_) convert(view_, wanted_, stream);
  }

 private:
  OutputView wanted_;
  bool is_direct_;
  Scratch memory_;
  OutputView view_;
};

void clear_gradient(Out grad, Stream& stream) {
  if (grad && !grad.accumulate && grad.count() > 0)
    LOCKSTEP_CUDA(
        cudaMemsetAsync(grad.data, 0, static_cast<std::size_t>(grad.count()) * size_of(grad.dtype), native(stream)));
}

void refuse_what_only_the_cpu_has(const AttentionParams& params) {
  LOCKSTEP_CHECK(params.mask == nullptr && params.key_lengths == nullptr,
                 "a GPU's attention takes neither masks nor key lengths");
}

void attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream& stream) {
  refuse_what_only_the_cpu_has(params);
  const AttentionShape s = attention_shape(q, k);
  if (s.empty()) return clear_gradient(y, stream);
  for (const InputView& other : {k, v, InputView(y)}) require_type(q.dtype, other);
  require_attention_width(s.width);
  if (may_use_cudnn(s, q.dtype, {q.data, k.data, v.data, y.data, log_sums.data}) &&
      cudnn_attention(params, q, k, v, y, log_sums, stream))
    return;
  float_attention(params, q, k, v, y, log_sums, stream);
}

void attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                        Out k_grad, Out v_grad, Stream& stream) {
  refuse_what_only_the_cpu_has(params);
  const AttentionShape s = attention_shape(q, k);
  if (s.empty()) {
    for (const OutputView* grad : {&q_grad, &k_grad, &v_grad}) clear_gradient(*grad, stream);
    return;
  }
  if (!q_grad && !k_grad && !v_grad) return;
  for (const InputView& other : {k, v, y, y_grad, InputView(q_grad), InputView(k_grad), InputView(v_grad)})
    require_type(q.dtype, other);
  require_attention_width(s.width);
  if (may_use_cudnn(s, q.dtype, {q.data, k.data, v.data, y.data, log_sums.data, y_grad.data})) {
    const CudnnGradient of_q(q_grad, q, stream), of_k(k_grad, k, stream), of_v(v_grad, v, stream);
    if (cudnn_attention_backward(params, q, k, v, y, log_sums, y_grad, of_q.view(), of_k.view(), of_v.view(), stream)) {
      for (const CudnnGradient* const each : {&of_q, &of_k, &of_v}) each->finish(stream);
      return;
    }
  }
  float_attention_backward(params, q, k, v, y, log_sums, y_grad, q_grad, k_grad, v_grad, stream);
}

}  // namespace

void use_attention(KernelTable& table) {
  table.attention = attention;
  table.attention_backward = attention_backward;
}

}  // namespace lockstep::cuda
