// Attention: threads share the heads of the batch.
#include "kernels/cpu/attention/attention_head.h"
#include "kernels/cpu/attention/fused_attention.h"
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/math/any_float.h"
#include "src/core/process/compute_threads.h"

namespace lockstep {

namespace {

void attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty()) return reference_kernels().attention(params, q, k, v, y, log_sums, stream);
  in_parallel(s.batch * s.heads, [&](std::int64_t head) {
    fused_attention::head_forward(HeadOperands(s, params, q, k, v, head), y.floats(),
                                  log_sums.floats() + head * s.queries);
  });
}

void attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                        Out k_grad, Out v_grad, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty())
    return reference_kernels().attention_backward(params, q, k, v, y, log_sums, y_grad, q_grad, k_grad, v_grad, stream);
  in_parallel(s.batch * s.heads, [&](std::int64_t nth) {
    const HeadOperands head(s, params, q, k, v, nth);
    fused_attention::head_backward(head, y.floats(), y_grad.floats(), log_sums.floats() + nth * s.queries,
                                   {head, q_grad, k_grad, v_grad});
  });
}

}  // namespace

void use_attention(KernelTable& table) {
  table.attention = any_float<attention>;
  table.attention_backward = any_float<attention_backward>;
}

}  // namespace lockstep
