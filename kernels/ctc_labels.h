// One sample of CTC (Graves et al. 2006, "Connectionist Temporal Classification", section 4.1). Its labels are extended
// by blanks: blank, label, blank, label, ..., blank. alpha(t, s) is the probability of all alignments of the inputs 0
// to t that end with extended label s; beta(t, s) is that of the inputs after t, for alignments that have label s at t.
// The gradient of a log probability is the share of its label: the sum of alpha * beta over the label's places, divided
// by that over all places. (Divided by the probability of all alignments, which is the same, it would lose digits in
// long sequences, in which all three are tiny.)
#pragma once

#include <cstdint>

#include "kernels/always_inline.h"
#include "lockstep/core/host_device.h"

namespace lockstep {

struct CtcSample {
  const std::int64_t* labels;
  std::int64_t steps, width, blank;  // inputs; extended labels

  // `lengths` (2, samples): those of the inputs, and those of the labels, of which each sample has a row of `row`.
  LOCKSTEP_HOST_DEVICE CtcSample(const std::int64_t* all_labels, std::int64_t row, const std::int64_t* lengths,
                                 std::int64_t samples, std::int64_t sample, std::int64_t blank)
      : labels(all_labels + sample * row),
        steps(lengths[sample]),
        width(2 * lengths[samples + sample] + 1),
        blank(blank) {}

  LOCKSTEP_HOST_DEVICE std::int64_t label(std::int64_t s) const { return s % 2 == 0 ? blank : labels[s / 2]; }
  // Whether s - 2 may be followed by s, without the blank between two different labels.
  LOCKSTEP_HOST_DEVICE bool may_skip(std::int64_t s) const {
    return s % 2 == 1 && s >= 2 && labels[s / 2] != labels[s / 2 - 1];
  }
};

// The logarithm of 0, below which no logarithm falls: finite, so that no difference of two is NaN. What is below half
// of it is impossible.
inline constexpr float kCtcImpossible = -1e30F;
template <typename Number> LOCKSTEP_FORMULA Number ctc_bounded(Number log_probability) {
  return log_probability < Number{kCtcImpossible} ? Number{kCtcImpossible} : log_probability;  // NaN stays NaN
}
LOCKSTEP_HOST_DEVICE inline bool is_ctc_impossible(float log_probability) {
  return log_probability < kCtcImpossible / 2;
}

}  // namespace lockstep
