// Losses. Cross entropy of a softmax, shifted by the largest logit so that exp() stays in range; half the squared norm.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

// On the CPU the operator has looked at the labels; on a GPU it has not, and one outside makes loss and gradient NaN.
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
bool is_label(Index label, Index classes) { return label >= 0 && label < classes; }

}  // namespace

void softmax_cross_entropy(const float* logits, const Index* labels, Index batch, Index classes, float* loss, float* probabilities,
                           Stream&) {
  double total = 0;
  for (Index n = 0; n < batch; ++n) {
    const float* row = logits + n * classes;
    const float largest = *std::max_element(row, row + classes);
    double sum = 0;
    for (Index k = 0; k < classes; ++k) sum += std::exp(static_cast<double>(row[k]) - largest);
    for (Index k = 0; k < classes; ++k)
      probabilities[n * classes + k] = static_cast<float>(std::exp(static_cast<double>(row[k]) - largest) / sum);
    total += is_label(labels[n], classes) ? std::log(sum) - (static_cast<double>(row[labels[n]]) - largest) : kNan;
  }
  *loss = static_cast<float>(total / static_cast<double>(batch));
}

void softmax_cross_entropy_backward(const float* probabilities, const Index* labels, Index batch, Index classes, const float* loss_grad,
                                    float* logits_grad, bool accumulate, Stream&) {
  const float factor = *loss_grad / static_cast<float>(batch);
  for (Index n = 0; n < batch; ++n)
    for (Index k = 0; k < classes; ++k) {
      const Index at = n * classes + k;
      const float target = is_label(labels[n], classes) ? (labels[n] == k ? 1.0F : 0.0F) : static_cast<float>(kNan);
      store(logits_grad[at], (probabilities[at] - target) * factor, accumulate);
    }
}

void l2_loss(const float* x, Index count, float* loss, Stream&) {
  double sum = 0;
  for (Index i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  *loss = static_cast<float>(sum / 2);
}

}  // namespace lockstep::reference
