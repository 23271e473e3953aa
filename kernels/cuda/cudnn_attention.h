// Attention in 16 bits by cuDNN's fused kernels, on tensor cores. Operands are read and gradients written where they
// are, also inside a packed array; sums are float32, and log_sums are cuDNN's statistics (the logarithms of the sums of
// exp(scale * q . k), which is our definition, too).
#pragma once

#include "kernels/attention_shape.h"
#include "kernels/cuda/cuda_kernels.h"

namespace lockstep::cuda {

// cuDNN's demands on every call; its version and the GPU decide what it can compute beyond that.
inline constexpr std::int64_t kCudnnWidthStep = 8;  // the width of a head is a multiple of this

// As the operators of these names, for 16-bit types and shapes that are not empty. The gradients are all wanted and do
// not accumulate; if q is packed, q's holds all. The stream's device becomes the thread's current one. They return
// false, and have computed nothing of use, if cuDNN has no engine: that is logged, once per shape. Throw Error if cuDNN
// fails, if there is no memory for its workspace, and if the shape is new while a graph is captured.
bool cudnn_attention(const AttentionParams&, In q, In k, In v, Out y, Out log_sums, Stream&);
bool cudnn_attention_backward(const AttentionParams&, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                              Out k_grad, Out v_grad, Stream&);

// A part of the heads of an attention: `heads` of them in each of `samples`, which are all or one.
struct AttentionPart {
  std::int64_t samples, heads;
};
// The largest part that needs at most `most` bytes if all of the attention needs `bytes` and each head needs the same,
// or the smallest that there is: each part begins at an aligned address, also in the statistics.
AttentionPart part_within(std::int64_t most, std::int64_t bytes, const AttentionShape& shape);

}  // namespace lockstep::cuda
