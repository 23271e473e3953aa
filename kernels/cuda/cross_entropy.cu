// Cross entropy of a softmax, shifted by the largest logit so that exp() does not overflow, and of log probabilities.
// Forward reads the logits once, in their own type, and keeps two floats per row; backward computes the probabilities
// again from them, so that no array of probabilities exists. A warp or a block takes a row; then one block sums the
// rows in a fixed order, so results are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fast_division.cuh"
#include "kernels/cuda/row_group.cuh"

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
  // The row's part of the divisor.
  __device__ float weight_of(Index n) const {
    if (is_ignored(n)) return 0;
    if (labels == nullptr || weight == nullptr) return 1;
    return is_label(n) ? weight[labels[n]] : 0;
  }
  // True if classes other than the label may have coefficients.
  __device__ bool has_many() const { return labels == nullptr || each != 0; }
};

// c_k of operators.def for one row.
struct RowCoefficients {
  const float *soft, *weight;
  Index label;
  float keep, each;

  __device__ RowCoefficients(const RowTargets& targets, Index n)
      : soft(targets.soft == nullptr ? nullptr : targets.soft + n * targets.classes),
        weight(targets.weight),
        label(targets.labels == nullptr ? -1 : targets.labels[n]),
        keep(targets.keep),
        each(targets.each) {
    if (targets.labels != nullptr && !targets.is_label(n)) keep = each = nanf("");
  }
  __device__ float operator()(Index k) const {
    // An invalid label has no class, so that NaN comes from `each`.
    const float target = soft != nullptr ? keep * soft[k] : label == k ? keep : 0;
    return (weight == nullptr ? 1.0F : weight[k]) * (target + each);
  }
  __device__ float at_label() const { return isnan(keep) ? keep : (*this)(label); }
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

// A row of forward's statistics, (N, 2) in operators.def.
struct RowStatistics {
  float largest, inverse_sum;
};

// The largest of some logits, and the sum of their exponentials relative to it.
struct RunningSum {
  float largest = -INFINITY, sum = 0;

  __device__ void add(const float* values, int count) {
    float most = largest;
    for (int j = 0; j < count; ++j) most = fmaxf(most, values[j]);
    rescale(most);
    for (int j = 0; j < count; ++j) sum += most == -INFINITY && values[j] == most ? 0.0F : expf(values[j] - most);
  }
  __device__ void rescale(float most) {
    if (most != largest) sum *= expf(largest - most);
    largest = most;
  }
};

template <typename Group, typename T> __global__ void cross_entropy_rows(const T* logits, RowTargets targets,
                                                                         Index batch, float* losses, float* weights,
                                                                         RowStatistics* statistics) {
  const Index classes = targets.classes;
  for (Index n = Group::first_row(); n < batch; n += Group::row_step()) {
    const T* const row = logits + n * classes;
    const bool is_ignored = targets.is_ignored(n);
    const RowCoefficients coefficient(targets, n);
    RunningSum running;
    visit_row<Group>(row, classes, [&](Index, const float* values, int count) { running.add(values, count); });
    const float largest = Group::largest(running.largest);
    running.rescale(largest);
    const float sum = Group::sum(running.sum);
    float coefficients = 0, distances = 0;
    if (targets.has_many()) {
      visit_row<Group>(row, classes, [&](Index first, const float* values, int count) {
        for (int j = 0; j < count; ++j) {
          const float c = coefficient(first + j);
          coefficients += c;
          if (c != 0) distances += c * (largest - values[j]);
        }
      });
      coefficients = Group::sum(coefficients);
      distances = Group::sum(distances);
    }
    if (Group::thread() != 0) continue;
    if (!targets.has_many()) {
      coefficients = is_ignored ? 0 : coefficient.at_label();
      if (coefficients != 0 && !isnan(coefficients))
        distances = coefficients * (largest - widen(row[coefficient.label]));
    }
    // A term without a coefficient is 0 even if the sum is NaN.
    losses[n] = is_ignored ? 0 : (coefficients == 0 ? 0 : coefficients * logf(sum)) + distances;
    if (weights != nullptr) weights[n] = targets.weight_of(n);
    statistics[n] = is_ignored             ? RowStatistics{0, 0}
                    : largest == -INFINITY ? RowStatistics{largest, nanf("")}
                                           : RowStatistics{largest, 1 / sum};
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

template <typename Group, typename T>
__global__ void cross_entropy_rows_backward(const T* logits, const RowStatistics* statistics, RowTargets targets,
                                            Index batch, RowFactors factors, T* logits_grad, bool accumulate) {
  const Index classes = targets.classes;
  const float common = factors.common();
  for (Index n = Group::first_row(); n < batch; n += Group::row_step()) {
    const bool is_ignored = targets.is_ignored(n);
    const RowCoefficients coefficient(targets, n);
    const RowStatistics of = statistics[n];
    const float factor = factors.of(n, common);
    float coefficients = 1;  // their sum: that of labels without weights is 1
    if (targets.soft != nullptr || (targets.weight != nullptr && targets.each != 0)) {
      coefficients = 0;
      for (Index k = Group::thread(); k < classes; k += Group::kSize) coefficients += coefficient(k);
      coefficients = Group::sum(coefficients);
    } else if (targets.weight != nullptr) {
      coefficients = is_ignored ? 0 : coefficient.at_label();
    }
    T* const grad = logits_grad + n * classes;
    visit_row<Group>(logits + n * classes, classes, [&](Index first, const float* values, int count) {
      float slopes[RowParts<T>::kOf];
      for (int j = 0; j < count; ++j)
        slopes[j] =
            is_ignored
                ? 0
                : (coefficients * (expf(values[j] - of.largest) * of.inverse_sum) - coefficient(first + j)) * factor;
      store_part(grad, first, slopes, count, accumulate);
    });
  }
}

template <typename Number> __global__ void nll_backward(RowTargets targets, Divisor<Number> classes, Index count,
                                                        RowFactors factors, float* grad, bool accumulate) {
  const float common = factors.common();
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const auto [n, k] = classes.divide(static_cast<Number>(i));
    store(grad[i], targets.is_ignored(n) ? 0 : -RowCoefficients(targets, n)(k) * factors.of(n, common), accumulate);
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
                           Out statistics, Stream& stream) {
  const Index batch = logits.shape[0], classes = logits.shape[1];
  const RowLosses rows(params.reduction, loss, divisor, batch, stream);
  const RowTargets wanted = row_targets(params, targets, weight, classes);
  if (batch > 0)
    with_float(logits.dtype, [&]<typename T>(T*) {
      with_row_group(batch, classes, [&]<typename Group>(Group, unsigned blocks) {
        LOCKSTEP_LAUNCH((cross_entropy_rows<Group, T>), blocks, kThreads, 0, stream, logits.as<T>(), wanted, batch,
                        rows.losses(), rows.weights(), reinterpret_cast<RowStatistics*>(statistics.floats()));
      });
    });
  rows.add_up();
}

void softmax_cross_entropy_backward(const CrossEntropyParams& params, In logits, In statistics, In targets, In weight,
                                    In divisor, In loss_grad, Out logits_grad, Stream& stream) {
  const Index batch = logits.shape[0], classes = logits.shape[1];
  if (batch * classes == 0) return;
  const RowTargets wanted = row_targets(params, targets, weight, classes);
  const RowFactors factors{params.reduction, divisor.floats(), loss_grad.floats()};
  with_float(logits.dtype, [&]<typename T>(T*) {
    with_row_group(batch, classes, [&]<typename Group>(Group, unsigned blocks) {
      LOCKSTEP_LAUNCH((cross_entropy_rows_backward<Group, T>), blocks, kThreads, 0, stream, logits.as<T>(),
                      reinterpret_cast<const RowStatistics*>(statistics.floats()), wanted, batch, factors,
                      logits_grad.as<T>(), logits_grad.accumulate);
    });
  });
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
