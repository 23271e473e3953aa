// Cross entropy of a softmax, shifted by the largest logit so that exp() does not overflow, and of log probabilities.
// One warp per row; then one block sums the rows in a fixed order, so results are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fast_division.cuh"
#include "kernels/cuda/warp.cuh"

namespace lockstep::cuda {

namespace {

// The targets of the rows of scores (N, K): labels or soft targets, and the classes' weights. The host does not check
// labels on a GPU: an invalid one makes loss and gradient NaN.
struct RowTargets {
  const Index* labels;
  const float *soft, *weight;
  Index ignored, classes;
  float keep, each;

  __device__ bool is_ignored(Index n) const { return labels != nullptr && labels[n] == ignored; }
  __device__ bool is_label(Index n) const { return labels[n] >= 0 && labels[n] < classes; }
  __device__ float weight_of_class(Index k) const { return weight == nullptr ? 1.0F : weight[k]; }
  // The row's part of the divisor.
  __device__ float weight_of(Index n) const {
    if (is_ignored(n)) return 0;
    if (labels == nullptr || weight == nullptr) return 1;
    return is_label(n) ? weight[labels[n]] : 0;
  }
  // c_k of operators.def.
  __device__ float coefficient(Index n, Index k) const {
    if (labels != nullptr && !is_label(n)) return nanf("");
    const float target = labels == nullptr ? keep * soft[n * classes + k] : labels[n] == k ? keep : 0;
    return weight_of_class(k) * (target + each);
  }
};

RowTargets row_targets(const CrossEntropyParams& params, In targets, In weight, Index classes) {
  const bool are_labels = targets.dtype == DType::kInt64;
  return {are_labels ? targets.as<Index>() : nullptr,
          are_labels ? nullptr : targets.floats(),
          weight.floats(),
          params.ignore_index,
          classes,
          1 - params.label_smoothing,
          params.label_smoothing / static_cast<float>(classes)};
}

__global__ void cross_entropy_rows(const float* logits, RowTargets targets, Index batch, float* losses, float* weights,
                                   float* probabilities) {
  const int lane = threadIdx.x % 32;
  const Index classes = targets.classes;
  for (Index n = first_row_of_warp(); n < batch; n += warps_of_grid()) {
    const float* const row = logits + n * classes;
    const bool is_ignored = targets.is_ignored(n);
    float largest = -INFINITY, sum = 0, coefficients = 0, distances = 0;
    for (Index k = lane; k < classes; k += 32) largest = fmaxf(largest, row[k]);
    largest = warp_max(largest);
    for (Index k = lane; k < classes; k += 32) {
      sum += expf(row[k] - largest);
      const float coefficient = targets.coefficient(n, k);
      coefficients += coefficient;
      if (coefficient != 0) distances += coefficient * (largest - row[k]);
    }
    sum = warp_sum(sum);
    coefficients = warp_sum(coefficients);
    distances = warp_sum(distances);
    const float inverse = 1 / sum;
    for (Index k = lane; k < classes; k += 32)
      probabilities[n * classes + k] = is_ignored ? 0 : expf(row[k] - largest) * inverse;
    if (lane == 0) {
      losses[n] = is_ignored ? 0 : coefficients * logf(sum) + distances;
      if (weights != nullptr) weights[n] = targets.weight_of(n);
    }
  }
}

__global__ void nll_rows(const float* log_probabilities, RowTargets targets, Index batch, float* losses,
                         float* weights) {
  for (Index n = first_item(); n < batch; n += stride_of_grid()) {
    const float weight = targets.weight_of(n);
    const bool is_nan = !targets.is_ignored(n) && !targets.is_label(n);
    losses[n] = is_nan        ? nanf("")
                : weight == 0 ? 0
                              : -weight * log_probabilities[n * targets.classes + targets.labels[n]];
    if (weights != nullptr) weights[n] = weight;
  }
}

// Runs in one block: loss = sum of `losses`, divided by the sum of `weights` if there are any.
__global__ void add_rows(const float* losses, const float* weights, Index count, float* loss, float* divisor) {
  double sum = 0, total = 0;
  for (Index i = threadIdx.x; i < count; i += kThreads) {
    sum += losses[i];
    if (weights != nullptr) total += weights[i];
  }
  sum = sum_of_block<kThreads>(sum);
  total = sum_of_block<kThreads>(total);
  if (threadIdx.x != 0) return;
  if (weights == nullptr) {
    *loss = static_cast<float>(sum);
    return;
  }
  if (sum == 0 && total == 0) total = INFINITY;
  *loss = static_cast<float>(sum / total);
  *divisor = static_cast<float>(total);
}

// The factors of the rows' gradients.
struct RowFactors {
  Reduction reduction;
  const float *divisor, *loss_grad;

  // The factor of all rows, unless each has its own.
  __device__ float common() const {
    if (reduction == Reduction::kNone) return 0;
    return reduction == Reduction::kMean ? static_cast<float>(*loss_grad / static_cast<double>(*divisor)) : *loss_grad;
  }
  __device__ float of(Index n, float common) const { return reduction == Reduction::kNone ? loss_grad[n] : common; }
};

// For labels without class weights, where the coefficients add up to 1: one thread per element.
template <typename Number>
__global__ void plain_cross_entropy_backward(const float* probabilities, RowTargets targets, Divisor<Number> classes,
                                             Index count, RowFactors factors, float* logits_grad, bool accumulate) {
  const float common = factors.common();
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const auto [n, k] = classes.divide(static_cast<Number>(i));
    const float slope =
        targets.is_ignored(n) ? 0 : (probabilities[i] - targets.coefficient(n, k)) * factors.of(n, common);
    store(logits_grad[i], slope, accumulate);
  }
}

__global__ void cross_entropy_rows_backward(const float* probabilities, RowTargets targets, Index batch,
                                            RowFactors factors, float* logits_grad, bool accumulate) {
  const int lane = threadIdx.x % 32;
  const Index classes = targets.classes;
  const float common = factors.common();
  for (Index n = first_row_of_warp(); n < batch; n += warps_of_grid()) {
    const bool is_ignored = targets.is_ignored(n);
    const float factor = factors.of(n, common);
    float coefficients = 0;
    for (Index k = lane; k < classes; k += 32) coefficients += targets.coefficient(n, k);
    coefficients = warp_sum(coefficients);
    for (Index k = lane; k < classes; k += 32) {
      const Index i = n * classes + k;
      store(logits_grad[i], is_ignored ? 0 : (coefficients * probabilities[i] - targets.coefficient(n, k)) * factor,
            accumulate);
    }
  }
}

template <typename Number> __global__ void nll_backward(RowTargets targets, Divisor<Number> classes, Index count,
                                                        RowFactors factors, float* grad, bool accumulate) {
  const float common = factors.common();
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const auto [n, k] = classes.divide(static_cast<Number>(i));
    store(grad[i], targets.is_ignored(n) ? 0 : -targets.coefficient(n, k) * factors.of(n, common), accumulate);
  }
}

// The rows' losses and weights until they are summed. With kNone the losses are the result.
class RowLosses {
 public:
  RowLosses(Reduction reduction, Out loss, Out divisor, Index batch, Stream& stream)
      : reduction_(reduction),
        loss_(loss),
        divisor_(divisor),
        batch_(batch),
        stream_(stream),
        memory_(stream, static_cast<std::size_t>(std::max<Index>(batch, 1)) * 2 * sizeof(float)) {}
  float* losses() const { return reduction_ == Reduction::kNone ? loss_.floats() : memory_.as<float>(); }
  float* weights() const { return reduction_ == Reduction::kMean ? memory_.as<float>() + batch_ : nullptr; }
  void add_up() const {
    if (reduction_ == Reduction::kNone) return;
    LOCKSTEP_LAUNCH(add_rows, 1, kThreads, 0, stream_, losses(), weights(), batch_, loss_.floats(), divisor_.floats());
  }

 private:
  Reduction reduction_;
  Out loss_, divisor_;
  Index batch_;
  Stream& stream_;
  Scratch memory_;
};

void softmax_cross_entropy(const CrossEntropyParams& params, In logits, In targets, In weight, Out loss, Out divisor,
                           Out probabilities, Stream& stream) {
  const Index batch = logits.shape[0], classes = logits.shape[1];
  const RowLosses rows(params.reduction, loss, divisor, batch, stream);
  if (batch > 0)
    LOCKSTEP_LAUNCH(cross_entropy_rows, blocks_for(batch, kWarpsOfBlock), kThreads, 0, stream, logits.floats(),
                    row_targets(params, targets, weight, classes), batch, rows.losses(), rows.weights(),
                    probabilities.floats());
  rows.add_up();
}

void softmax_cross_entropy_backward(const CrossEntropyParams& params, In probabilities, In targets, In weight,
                                    In divisor, In loss_grad, Out logits_grad, Stream& stream) {
  const Index batch = probabilities.shape[0], classes = probabilities.shape[1];
  if (batch * classes == 0) return;
  const RowTargets wanted = row_targets(params, targets, weight, classes);
  const RowFactors factors{params.reduction, divisor.floats(), loss_grad.floats()};
  if (wanted.labels != nullptr && wanted.weight == nullptr)
    with_index_of(batch * classes, [&]<typename Number>(Number) {
      LOCKSTEP_LAUNCH((plain_cross_entropy_backward<Number>), blocks_for(batch * classes), kThreads, 0, stream,
                      probabilities.floats(), wanted, Divisor<Number>(classes), batch * classes, factors,
                      logits_grad.floats(), logits_grad.accumulate);
    });
  else
    LOCKSTEP_LAUNCH(cross_entropy_rows_backward, blocks_for(batch, kWarpsOfBlock), kThreads, 0, stream,
                    probabilities.floats(), wanted, batch, factors, logits_grad.floats(), logits_grad.accumulate);
}

void nll_loss(const CrossEntropyParams& params, In log_probabilities, In labels, In weight, Out loss, Out divisor,
              Stream& stream) {
  const Index batch = log_probabilities.shape[0], classes = log_probabilities.shape[1];
  const RowLosses rows(params.reduction, loss, divisor, batch, stream);
  if (batch > 0)
    LOCKSTEP_LAUNCH(nll_rows, blocks_for(batch), kThreads, 0, stream, log_probabilities.floats(),
                    row_targets({0, params.reduction, params.ignore_index}, labels, weight, classes), batch,
                    rows.losses(), rows.weights());
  rows.add_up();
}

void nll_loss_backward(const CrossEntropyParams& params, In labels, In weight, In divisor, In loss_grad, Out grad,
                       Stream& stream) {
  const Index batch = grad.shape[0], classes = grad.shape[1];
  const RowFactors factors{params.reduction, divisor.floats(), loss_grad.floats()};
  if (batch * classes == 0) return;
  with_index_of(batch * classes, [&]<typename Number>(Number) {
    LOCKSTEP_LAUNCH((nll_backward<Number>), blocks_for(batch * classes), kThreads, 0, stream,
                    row_targets({0, params.reduction, params.ignore_index}, labels, weight, classes),
                    Divisor<Number>(classes), batch * classes, factors, grad.floats(), grad.accumulate);
  });
}

}  // namespace

void use_cross_entropy(KernelTable& table) {
  table.softmax_cross_entropy = softmax_cross_entropy;
  table.softmax_cross_entropy_backward = softmax_cross_entropy_backward;
  table.nll_loss = nll_loss;
  table.nll_loss_backward = nll_loss_backward;
}

}  // namespace lockstep::cuda
