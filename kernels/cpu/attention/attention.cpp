// Attention: threads share the heads of the batch.
#include "kernels/cpu/attention/attention_head.h"
#include "kernels/cpu/attention/fused_attention.h"
#include "kernels/cpu/attention/half_head.h"
#include "kernels/cpu/cpu_table.h"
#include "src/core/process/compute_threads.h"

namespace lockstep {

namespace {

void attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty()) return reference_kernels().attention(params, q, k, v, y, log_sums, stream);
  in_parallel(s.batch * s.heads, [&](std::int64_t nth) {
    float* const sums = log_sums.floats() + nth * s.queries;
    if (!is_half(q.dtype))
      return fused_attention::head_forward(HeadOperands(s, params, q, k, v, nth), y.floats(), sums);
    const HalfHead half(s, params, q.dtype, nth);
    const Scratch operands(half.query_floats() + 2 * half.key_floats()), result(half.query_floats());
    fused_attention::head_forward(half.operands(q, k, v, operands.data()), result.data(), sums);
    half.round_result(result.data(), y);
  });
}

void attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                        Out k_grad, Out v_grad, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty())
    return reference_kernels().attention_backward(params, q, k, v, y, log_sums, y_grad, q_grad, k_grad, v_grad, stream);
  const auto compute = [&](std::int64_t nth, bool adds_to_keys) {
    const float* const sums = log_sums.floats() + nth * s.queries;
    if (!is_half(q.dtype)) {
      const HeadOperands head(s, params, q, k, v, nth);
      return fused_attention::head_backward(head, y.floats(), y_grad.floats(), sums,
                                            {head, q_grad, k_grad, v_grad, adds_to_keys});
    }
    const HalfHead half(s, params, q.dtype, nth);
    const std::int64_t of_operands = half.query_floats() + 2 * half.key_floats();
    const Scratch operands(of_operands), results(2 * half.query_floats()), gradients(of_operands);
    float *const result = results.data(), *const result_grad = result + half.query_floats();
    half.widen_result(y, result), half.widen_result(y_grad, result_grad);
    const HeadOperands head = half.operands(q, k, v, operands.data());
    fused_attention::head_backward(head, result, result_grad, sums,
                                   half.gradients(head, q_grad, k_grad, v_grad, adds_to_keys, gradients.data()));
    half.round_gradients(gradients.data(), q_grad, k_grad, v_grad);
  };
  // The heads that share keys add to the same gradients, one after the other.
  in_parallel(s.batch * s.heads_of_keys(), [&](std::int64_t nth) {
    for (std::int64_t i = 0; i < s.group(); ++i) compute(nth * s.group() + i, i > 0);
  });
}

}  // namespace

void use_attention(KernelTable& table) {
  table.attention = attention;
  table.attention_backward = attention_backward;
}

}  // namespace lockstep
