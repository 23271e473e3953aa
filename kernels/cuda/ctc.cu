// CTC: one block per sample, whose threads share the extended labels of each step. No sum depends on the order in which
// threads arrive.
#include "kernels/ctc_labels.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"

namespace lockstep::cuda {

namespace {

__device__ float log_sum_of_three(float a, float b, float c) {
  const float largest = fmaxf(fmaxf(a, b), c);
  return largest + logf(expf(a - largest) + expf(b - largest) + expf(c - largest));
}

struct CtcArrays {
  const float* x;  // (samples, steps, classes)
  const Index *labels, *lengths;
  Index samples, steps, classes, most_labels, blank;

  __device__ CtcSample sample(Index n) const { return {labels, most_labels, lengths, samples, n, blank}; }
  __device__ Index row() const { return 2 * most_labels + 1; }
  __device__ const float* at(Index n, Index t) const { return x + (n * steps + t) * classes; }
};

__global__ void ctc_forward(CtcArrays all, float* alphas, float* losses) {
  for (Index n = blockIdx.x; n < all.samples; n += gridDim.x) {
    const CtcSample of = all.sample(n);
    float* const alpha = alphas + n * all.steps * all.row();
    for (Index t = 0; t < of.steps; ++t) {
      float* const now = alpha + t * all.row();
      const float* const before = now - all.row();  // not read at step 0
      for (Index s = threadIdx.x; s < of.width; s += kThreads) {
        float ways = s < 2 ? 0 : kCtcImpossible;
        if (t > 0)
          ways = log_sum_of_three(before[s], s >= 1 ? before[s - 1] : kCtcImpossible,
                                  of.may_skip(s) ? before[s - 2] : kCtcImpossible);
        now[s] = ctc_bounded(ways + all.at(n, t)[of.label(s)]);
      }
      __syncthreads();
    }
    if (threadIdx.x != 0) continue;
    float end = of.width == 1 ? 0 : kCtcImpossible;
    if (of.steps > 0) {
      const float* const last = alpha + (of.steps - 1) * all.row();
      end = log_sum_of_three(last[of.width - 1], of.width > 1 ? last[of.width - 2] : kCtcImpossible, kCtcImpossible);
    }
    losses[n] = is_ctc_impossible(end) ? INFINITY : -end;
  }
}

// The sum of the shares of a label's places. Only its first place computes it.
__device__ bool is_first_of_label(const CtcSample& of, Index s) {
  for (Index earlier = 1; earlier < s; earlier += 2)
    if (of.label(earlier) == of.label(s)) return false;
  return true;
}

// `rows` (samples, 3, row): beta of this step and of the next one, and the shares.
__global__ void ctc_backward(CtcArrays all, const float* alphas, const float* losses, const float* loss_grads,
                             float* rows, float* x_grads) {
  __shared__ float factor;
  for (Index n = blockIdx.x; n < all.samples; n += gridDim.x) {
    const CtcSample of = all.sample(n);
    const float loss = losses[n], grad = loss_grads[n];
    float* const betas = rows + n * 3 * all.row();
    float* const shares = betas + 2 * all.row();
    const Index steps = isinf(loss) ? 0 : of.steps;
    for (Index t = steps - 1; t >= 0; --t) {
      float* const now = betas + t % 2 * all.row();
      const float* const after = betas + (t + 1) % 2 * all.row();
      const auto way = [&](Index s) { return ctc_bounded(after[s] + all.at(n, t + 1)[of.label(s)]); };
      for (Index s = threadIdx.x; s < of.width; s += kThreads) {
        float beta = s + 2 >= of.width ? 0 : kCtcImpossible;
        if (t < steps - 1)
          beta = log_sum_of_three(way(s), s + 1 < of.width ? way(s + 1) : kCtcImpossible,
                                  s + 2 < of.width && of.may_skip(s + 2) ? way(s + 2) : kCtcImpossible);
        now[s] = beta;
        shares[s] = expf(alphas[(n * all.steps + t) * all.row() + s] + beta + loss);
      }
      __syncthreads();
      float* const x_grad = x_grads + (n * all.steps + t) * all.classes;
      float of_blanks = 0, of_labels = 0;
      for (Index s = 2 * static_cast<Index>(threadIdx.x); s < of.width; s += 2 * kThreads) {
        of_blanks += shares[s];
        if (s + 1 < of.width) of_labels += shares[s + 1];
      }
      of_blanks = sum_of_block<kThreads>(of_blanks), of_labels = sum_of_block<kThreads>(of_labels);
      if (threadIdx.x == 0) factor = grad / (of_blanks + of_labels);
      __syncthreads();
      if (threadIdx.x == 0) x_grad[of.blank] -= of_blanks * factor;
      for (Index s = 2 * static_cast<Index>(threadIdx.x) + 1; s < of.width; s += 2 * kThreads) {
        if (!is_first_of_label(of, s)) continue;
        float sum = 0;
        for (Index place = s; place < of.width; place += 2)
          if (of.label(place) == of.label(s)) sum += shares[place];
        x_grad[of.label(s)] -= sum * factor;
      }
      __syncthreads();
    }
  }
}

CtcArrays arrays_of(Index blank, In x, In labels, In lengths) {
  return {x.floats(), labels.as<Index>(), lengths.as<Index>(), x.shape[0],
          x.shape[1], x.shape[2],         labels.shape[1],     blank};
}

void ctc_loss(Index blank, In x, In labels, In lengths, Out alpha, Out loss, Stream& stream) {
  if (x.shape[0] == 0) return;
  LOCKSTEP_LAUNCH(ctc_forward, blocks_for(x.shape[0], 1), kThreads, 0, stream, arrays_of(blank, x, labels, lengths),
                  alpha.floats(), loss.floats());
}

void ctc_loss_backward(Index blank, In x, In labels, In lengths, In alpha, In loss, In loss_grad, Out x_grad,
                       Stream& stream) {
  if (x_grad.count() == 0) return;
  if (!x_grad.accumulate)
    LOCKSTEP_CUDA(
        cudaMemsetAsync(x_grad.data, 0, static_cast<std::size_t>(x_grad.count()) * sizeof(float), native(stream)));
  const CtcArrays all = arrays_of(blank, x, labels, lengths);
  const Scratch rows(stream, static_cast<std::size_t>(all.samples * 3 * (2 * all.most_labels + 1)) * sizeof(float));
  LOCKSTEP_LAUNCH(ctc_backward, blocks_for(all.samples, 1), kThreads, 0, stream, all, alpha.floats(), loss.floats(),
                  loss_grad.floats(), rows.as<float>(), x_grad.floats());
}

}  // namespace

void use_ctc(KernelTable& table) {
  table.ctc_loss = ctc_loss;
  table.ctc_loss_backward = ctc_loss_backward;
}

}  // namespace lockstep::cuda
