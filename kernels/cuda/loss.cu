// Losses: cross entropy of a softmax (shifted by the largest logit, so that exp() stays in range) and sums over elements. Sums go in two
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
__global__ void cross_entropy_rows(const float* logits, const Index* labels, Index batch, Index classes, float smoothing, float* losses,
                                   float* probabilities) {
  const int lane = threadIdx.x % 32;
  for (Index n = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / 32; n < batch; n += static_cast<Index>(gridDim.x) * kWarps) {
    const float* row = logits + n * classes;
    float largest = -INFINITY;
    for (Index k = lane; k < classes; k += 32) largest = fmaxf(largest, row[k]);
    largest = largest_of_warp(largest);
    float sum = 0, distances = 0;
    for (Index k = lane; k < classes; k += 32) {
      sum += expf(row[k] - largest);
      if (smoothing != 0) distances += largest - row[k];
    }
    sum = sum_of_warp(sum);
    distances = sum_of_warp(distances);
    const float inverse = 1 / sum;
    for (Index k = lane; k < classes; k += 32) probabilities[n * classes + k] = expf(row[k] - largest) * inverse;
    if (lane == 0) {
      const float of_label = is_label(labels[n], classes) ? logf(sum) - (row[labels[n]] - largest) : nanf("");
      losses[n] =
          smoothing == 0 ? of_label : (1 - smoothing) * of_label + smoothing * (logf(sum) + distances / static_cast<float>(classes));
    }
  }
}

// One block: out = factor * sum of `values`.
__global__ void sum_all(const float* values, Index count, double factor, float* out) {
  double sum = 0;
  for (Index i = threadIdx.x; i < count; i += kThreads) sum += values[i];
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) *out = static_cast<float>(sum * factor);
}

__global__ void cross_entropy_backward(const float* probabilities, const Index* labels, Index batch, Index classes, float smoothing,
                                       double scale, const float* loss_grad, float* logits_grad, bool accumulate) {
  const auto factor = static_cast<float>(*loss_grad * scale);
  const float of_each = smoothing / static_cast<float>(classes), of_label = of_each + (1 - smoothing);
  const Index count = batch * classes;
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Index label = labels[i / classes];
    const float target = !is_label(label, classes) ? nanf("") : label == i % classes ? of_label : of_each;
    store(logits_grad[i], (probabilities[i] - target) * factor, accumulate);
  }
}

__global__ void nll_rows(const float* log_probabilities, const Index* labels, Index batch, Index classes, float* losses) {
  for (Index n = first_item(); n < batch; n += stride_of_grid())
    losses[n] = is_label(labels[n], classes) ? -log_probabilities[n * classes + labels[n]] : nanf("");
}

__global__ void nll_backward(const Index* labels, Index batch, Index classes, double scale, const float* loss_grad, float* grad,
                             bool accumulate) {
  const auto factor = static_cast<float>(*loss_grad * scale);
  const Index count = batch * classes;
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Index label = labels[i / classes];
    store(grad[i], !is_label(label, classes) ? nanf("") : label == i % classes ? -factor : 0, accumulate);
  }
}

// Losses that are sums over elements: an element's, and its derivatives by x and by the target.
struct SquaredError {
  __device__ static float value(float x, float t) { return (x - t) * (x - t); }
  __device__ static float by_x(float x, float t) { return 2 * (x - t); }
  __device__ static float by_target(float x, float t) { return 2 * (t - x); }
};
struct AbsoluteError {
  __device__ static float value(float x, float t) { return fabsf(x - t); }
  __device__ static float by_x(float x, float t) { return x > t ? 1.0F : x < t ? -1.0F : x - t; }  // 0 of equals, NaN of NaN
  __device__ static float by_target(float x, float t) { return by_x(t, x); }
};
struct BinaryCrossEntropy {
  __device__ static float value(float x, float t) { return (x < 0 ? 0 : x) - x * t + log1pf(expf(-fabsf(x))); }
  __device__ static float by_x(float x, float t) { return 1 / (1 + expf(-x)) - t; }
  __device__ static float by_target(float x, float) { return -x; }
};
struct HalfSquare {
  __device__ static float value(float x, float) { return x * x / 2; }
};

template <typename Loss>
__global__ void sums_of_parts(const float* x, const float* target, Index count, float* sums) {
  float sum = 0;
  for (Index i = first_item(); i < count; i += stride_of_grid()) sum += Loss::value(x[i], target[i]);
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// A null gradient was not asked for.
template <typename Loss>
__global__ void gradients(const float* x, const float* target, Index count, double scale, const float* loss_grad, float* x_grad,
                          bool accumulate_x, float* target_grad, bool accumulate_target) {
  const auto factor = static_cast<float>(*loss_grad * scale);
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const float from = x[i], to = target[i];
    if (x_grad != nullptr) store(x_grad[i], Loss::by_x(from, to) * factor, accumulate_x);
    if (target_grad != nullptr) store(target_grad[i], Loss::by_target(from, to) * factor, accumulate_target);
  }
}

double scale_of(Index count, bool mean) { return mean ? 1.0 / static_cast<double>(count) : 1.0; }

void softmax_cross_entropy(const CrossEntropyParams& params, In logits, In labels, Out loss, Out probabilities, Stream& stream) {
  const Index batch = logits.shape[0], classes = logits.shape[1];
  const Scratch losses(stream, static_cast<std::size_t>(std::max<Index>(batch, 1)) * sizeof(float));
  if (batch > 0)
    LOCKSTEP_LAUNCH(cross_entropy_rows, blocks_for(batch, kWarps), kThreads, 0, stream, logits.floats(), labels.as<Index>(), batch, classes,
                    params.label_smoothing, losses.as<float>(), probabilities.floats());
  LOCKSTEP_LAUNCH(sum_all, 1, kThreads, 0, stream, losses.as<const float>(), batch, scale_of(batch, params.mean), loss.floats());
}

void softmax_cross_entropy_backward(const CrossEntropyParams& params, In probabilities, In labels, In loss_grad, Out logits_grad,
                                    Stream& stream) {
  const Index batch = probabilities.shape[0], classes = probabilities.shape[1];
  if (batch * classes > 0)
    LOCKSTEP_LAUNCH(cross_entropy_backward, blocks_for(batch * classes), kThreads, 0, stream, probabilities.floats(), labels.as<Index>(),
                    batch, classes, params.label_smoothing, scale_of(batch, params.mean), loss_grad.floats(), logits_grad.floats(),
                    logits_grad.accumulate);
}

void nll_loss(In log_probabilities, In labels, bool mean, Out loss, Stream& stream) {
  const Index batch = log_probabilities.shape[0], classes = log_probabilities.shape[1];
  const Scratch losses(stream, static_cast<std::size_t>(std::max<Index>(batch, 1)) * sizeof(float));
  if (batch > 0)
    LOCKSTEP_LAUNCH(nll_rows, blocks_for(batch), kThreads, 0, stream, log_probabilities.floats(), labels.as<Index>(), batch, classes,
                    losses.as<float>());
  LOCKSTEP_LAUNCH(sum_all, 1, kThreads, 0, stream, losses.as<const float>(), batch, scale_of(batch, mean), loss.floats());
}

void nll_loss_backward(In labels, In loss_grad, bool mean, Out grad, Stream& stream) {
  const Index batch = grad.shape[0], classes = grad.shape[1];
  if (batch * classes > 0)
    LOCKSTEP_LAUNCH(nll_backward, blocks_for(batch * classes), kThreads, 0, stream, labels.as<Index>(), batch, classes,
                    scale_of(batch, mean), loss_grad.floats(), grad.floats(), grad.accumulate);
}

// loss = scale * sum of the elements' losses.
template <typename Loss>
void sum_over_elements(In x, In target, double scale, Out loss, Stream& stream) {
  const Index parts = std::clamp<Index>(x.count() / (kThreads * 16), 1, kMostParts);
  const Scratch sums(stream, static_cast<std::size_t>(parts) * sizeof(float));
  LOCKSTEP_LAUNCH((sums_of_parts<Loss>), static_cast<unsigned>(parts), kThreads, 0, stream, x.floats(), target.floats(), x.count(),
                  sums.as<float>());
  LOCKSTEP_LAUNCH(sum_all, 1, kThreads, 0, stream, sums.as<const float>(), parts, scale, loss.floats());
}

template <typename Loss>
void loss_of_elements(In x, In target, bool mean, Out loss, Stream& stream) {
  sum_over_elements<Loss>(x, target, scale_of(x.count(), mean), loss, stream);
}

template <typename Loss>
void gradients_of_elements(In x, In target, In loss_grad, bool mean, Out x_grad, Out target_grad, Stream& stream) {
  if (x.count() > 0)
    LOCKSTEP_LAUNCH((gradients<Loss>), blocks_for(x.count()), kThreads, 0, stream, x.floats(), target.floats(), x.count(),
                    scale_of(x.count(), mean), loss_grad.floats(), x_grad.floats(), x_grad.accumulate, target_grad.floats(),
                    target_grad.accumulate);
}

void l2_loss(In x, Out loss, Stream& stream) { sum_over_elements<HalfSquare>(x, x, 1, loss, stream); }

}  // namespace

void use_loss(KernelTable& table) {
  table.softmax_cross_entropy = softmax_cross_entropy;
  table.softmax_cross_entropy_backward = softmax_cross_entropy_backward;
  table.nll_loss = nll_loss;
  table.nll_loss_backward = nll_loss_backward;
  table.mse_loss = loss_of_elements<SquaredError>;
  table.mse_loss_backward = gradients_of_elements<SquaredError>;
  table.l1_loss = loss_of_elements<AbsoluteError>;
  table.l1_loss_backward = gradients_of_elements<AbsoluteError>;
  table.binary_cross_entropy_with_logits = loss_of_elements<BinaryCrossEntropy>;
  table.binary_cross_entropy_with_logits_backward = gradients_of_elements<BinaryCrossEntropy>;
  table.l2_loss = l2_loss;
}

}  // namespace lockstep::cuda
