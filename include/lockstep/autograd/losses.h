// Losses. Each returns a float32 scalar, or with Reduction::kNone one float32 value per row or element. All compute in
// float32, whatever the type of their inputs. The mean over zero rows or elements is undefined and throws
// InvalidArgument.
#pragma once

#include "lockstep/core/operator_shapes.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct CrossEntropyOptions {
  float label_smoothing = 0;                 // s, in [0, 1]
  Reduction reduction = Reduction::kMean;    // over the rows
  std::int64_t ignore_index = kIgnoreIndex;  // rows with this label, for example padding, are ignored
  Tensor weight = {};                        // per class, (K) float32, not differentiated; undefined: all 1
  // false: the first argument has probabilities, the result of a softmax, as with Keras' from_logits=False; see below.
  bool from_logits = true;
};
// The loss of a row is the sum over k of weight_k * target_k * -log softmax(logits)_k with target_k = (1 - s) * (label
// == k) + s / K (Szegedy et al. 2016, section 7), as in PyTorch. The last dimension holds the classes: logits (..., K),
// labels (...) int64 in [0, K). kNone returns (...). kMean divides the sum by the sum of weight[label] over the rows
// that are not ignored. If that sum is 0, the loss and its gradients are 0 (PyTorch: NaN).
//
// For any other label outside [0, K): on the CPU, throws InvalidArgument that says where it is; on a GPU, where
// checking would block the host, the loss and the gradients of that row become NaN.
//
// Soft targets, floats (..., K), replace (label == k). They are differentiated too, kMean divides by the number of
// rows, and ignore_index cannot be set.
//
// With from_logits = false, as Keras 3's categorical_crossentropy: log softmax(logits)_k becomes log p_k, with p
// clipped to [1e-7, 1 - 1e-7] and normalised to sum 1 (soft targets: first normalised, then clipped); the gradient of a
// clipped value is 0. Less precise than logits. Probabilities given as logits are not noticed: the loss stays near log
// K.
Tensor softmax_cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

struct NllLossOptions {
  Reduction reduction = Reduction::kMean;
  std::int64_t ignore_index = kIgnoreIndex;
  Tensor weight = {};  // weight and ignore_index as in CrossEntropyOptions
};
// The loss of a row is weight[label] * -log_probabilities[label]. log_probabilities (..., K); labels as for
// softmax_cross_entropy.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels, const NllLossOptions& options);
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels, Reduction reduction = Reduction::kMean);

// The loss of an element is (x - target)^2, or |x - target|. Shapes are equal; both inputs are differentiated. The
// derivative of |x - target| is 0 where both are equal.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);

// The loss of an element is -target * log sigmoid(x) - (1 - target) * log(1 - sigmoid(x)), computed as max(x, 0) - x *
// target + log(1 + exp(-|x|)), which does not overflow. Shapes are equal; both inputs are differentiated.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        Reduction reduction = Reduction::kMean);

struct BinaryCrossEntropyOptions {
  bool from_logits = false;
  Reduction reduction = Reduction::kMean;
};
// The loss of an element is -target * log(p) - (1 - target) * log(1 - p), p the probability x clipped to [1e-7, 1 -
// 1e-7], as Keras 3's binary_crossentropy (PyTorch's binary_cross_entropy clips the logarithms at -100 instead). With
// from_logits binary_cross_entropy_with_logits(x, target). Shapes are equal; both inputs are differentiated.
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BinaryCrossEntropyOptions& options = {});

// With d = x - target: 0.5 * d^2 where |d| < delta, else delta * (|d| - delta / 2) (Huber 1964). smooth_l1_loss is
// huber_loss / beta with delta = beta, and l1_loss for beta = 0. Shapes are equal; both inputs are differentiated.
Tensor huber_loss(const Tensor& x, const Tensor& target, float delta = 1, Reduction reduction = Reduction::kMean);
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, float beta = 1, Reduction reduction = Reduction::kMean);

struct KlDivOptions {
  bool log_target = false;                 // true: `target` holds logarithms, too
  Reduction reduction = Reduction::kMean;  // kMean: over all elements, which is not the divergence: see batch_mean
  bool batch_mean = false;                 // the sum divided by the first extent (PyTorch's "batchmean"), with kMean
};
// Kullback-Leibler divergence. The loss of an element is target * (ln(target) - log_probabilities), and it and its
// gradients are 0 where the target is 0; for a negative or NaN target it is NaN. Shapes are equal; both inputs are
// differentiated.
Tensor kl_div(const Tensor& log_probabilities, const Tensor& target, const KlDivOptions& options = {});

struct TripletMarginOptions {
  float margin = 1;
  float p = 2;        // the distance is the p-norm
  float eps = 1e-6f;  // added to each difference, as in PyTorch
  bool swap = false;  // take the smaller of the distances from anchor and positive to the negative
  Reduction reduction = Reduction::kMean;
};
// max(distance(anchor, positive) - distance(anchor, negative) + margin, 0) of each row; inputs (..., D) of equal
// shapes, kNone returns (...) (Schroff et al. 2015).
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginOptions& options = {});

struct CosineEmbeddingOptions {
  float margin = 0;
  Reduction reduction = Reduction::kMean;
};
// 1 - cos(a, b) of each row whose target is 1, and max(cos(a, b) - margin, 0) of each row whose target is -1; a and b
// (..., D), target (...), floats, or int64, which the host reads. For any other target the row's loss is 0, as in
// PyTorch.
Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                             const CosineEmbeddingOptions& options = {});

struct CtcLossOptions {
  std::int64_t blank = 0;
  Reduction reduction = Reduction::kMean;  // kMean: each loss is divided by its target's length (at least 1) before
  bool zero_infinity = false;              // samples whose target does not fit into their input have loss 0
};
// Connectionist temporal classification (Graves et al. 2006): the negative logarithm of the probability of all
// alignments of a sample's labels. log_probabilities (N, T, C), the result of log_softmax (PyTorch has T first);
// targets (N, S) int64, of which target_lengths (N) int64 count; input_lengths (N) int64, at most T. kNone returns (N).
// A target that does not fit has an infinite loss with gradients 0. The host reads targets and lengths, and waits for
// the device. Throws InvalidArgument for labels that are the blank or not in [0, C), and lengths out of range, with
// their place.
Tensor ctc_loss(const Tensor& log_probabilities, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, const CtcLossOptions& options = {});

// sum(x^2) / 2 (TensorFlow's l2_loss).
Tensor l2_loss(const Tensor& x);

}  // namespace lockstep
#pragma GCC visibility pop
