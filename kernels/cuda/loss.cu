// Losses: cross entropy of a softmax (shifted by the largest logit, so that exp() stays in range) and half the squared norm. Sums go in two
// steps of fixed order: the same bits every time.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {

namespace {

constexpr int kWarps = kThreads / 32;
constexpr Index kMostParts = 1024;

__device__ float largest_of_warp(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}
__device__ float sum_of_warp(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// Nobody on the host looks at labels that are on a GPU: one outside makes loss and gradient NaN.
__device__ bool is_label(Index label, Index classes) { return label >= 0 && label < classes; }

// A warp a row.
__global__ void cross_entropy_rows(const float* logits, const Index* labels, Index batch, Index classes, float* losses,
                                   float* probabilities) {
  const int lane = threadIdx.x % 32;
  for (Index n = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / 32; n < batch; n += static_cast<Index>(gridDim.x) * kWarps) {
    const float* row = logits + n * classes;
    float largest = -INFINITY;
    for (Index k = lane; k < classes; k += 32) largest = fmaxf(largest, row[k]);
    largest = largest_of_warp(largest);
    float sum = 0;
    for (Index k = lane; k < classes; k += 32) sum += expf(row[k] - largest);
    sum = sum_of_warp(sum);
    const float inverse = 1 / sum;
    for (Index k = lane; k < classes; k += 32) probabilities[n * classes + k] = expf(row[k] - largest) * inverse;
    if (lane == 0) losses[n] = is_label(labels[n], classes) ? logf(sum) - (row[labels[n]] - largest) : nanf("");
  }
}

// One block: out = factor * sum of `values`.
__global__ void sum_all(const float* values, Index count, double factor, float* out) {
  double sum = 0;
  for (Index i = threadIdx.x; i < count; i += kThreads) sum += values[i];
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) *out = static_cast<float>(sum * factor);
}

__global__ void cross_entropy_backward(const float* probabilities, const Index* labels, Index batch, Index classes, const float* loss_grad,
                                       float* logits_grad, bool accumulate) {
  const float factor = *loss_grad / static_cast<float>(batch);
  const Index count = batch * classes;
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Index label = labels[i / classes];
    const float target = !is_label(label, classes) ? nanf("") : label == i % classes ? 1.0F : 0.0F;
    store(logits_grad[i], (probabilities[i] - target) * factor, accumulate);
  }
}

__global__ void squares_of_parts(const float* x, Index count, float* sums) {
  float sum = 0;
  for (Index i = first_item(); i < count; i += stride_of_grid()) sum += x[i] * x[i];
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

void softmax_cross_entropy(const float* logits, const Index* labels, Index batch, Index classes, float* loss, float* probabilities,
                           Stream& stream) {
  const Scratch losses(stream, static_cast<std::size_t>(std::max<Index>(batch, 1)) * sizeof(float));
  if (batch > 0)
    LOCKSTEP_LAUNCH(cross_entropy_rows, blocks_for(batch, kWarps), kThreads, 0, stream, logits, labels, batch, classes, losses.as<float>(),
                    probabilities);
  LOCKSTEP_LAUNCH(sum_all, 1, kThreads, 0, stream, losses.as<const float>(), batch, 1.0 / static_cast<double>(batch), loss);
}

void softmax_cross_entropy_backward(const float* probabilities, const Index* labels, Index batch, Index classes, const float* loss_grad,
                                    float* logits_grad, bool accumulate, Stream& stream) {
  if (batch * classes > 0)
    LOCKSTEP_LAUNCH(cross_entropy_backward, blocks_for(batch * classes), kThreads, 0, stream, probabilities, labels, batch, classes,
                    loss_grad, logits_grad, accumulate);
}

void l2_loss(const float* x, Index count, float* loss, Stream& stream) {
  const Index parts = std::clamp<Index>(count / (kThreads * 16), 1, kMostParts);
  const Scratch sums(stream, static_cast<std::size_t>(parts) * sizeof(float));
  LOCKSTEP_LAUNCH(squares_of_parts, static_cast<unsigned>(parts), kThreads, 0, stream, x, count, sums.as<float>());
  LOCKSTEP_LAUNCH(sum_all, 1, kThreads, 0, stream, sums.as<const float>(), parts, 0.5, loss);
}

}  // namespace lockstep::cuda
