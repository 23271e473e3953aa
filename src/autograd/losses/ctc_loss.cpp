// CTC: the recursion of Graves et al., "Connectionist Temporal Classification" (ICML 2006), section 4.1, in logarithms,
// for all samples of a batch at once. A sample's labels are extended by blanks: blank, label, blank, label, ..., blank.
// alpha(t, s) is the probability of all alignments of the first t inputs with the first s extended labels; it sums
// alpha(t - 1, .) at s, s - 1, and, where label s differs from label s - 2, at s - 2.
#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/losses.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/losses/loss_reduction.h"

namespace lockstep {

namespace {

constexpr float kImpossible = -1e30f;  // the logarithm of 0: finite, so that no difference of two is NaN

// The extended labels of a batch, on the host.
struct ExtendedLabels {
  std::int64_t samples, width;       // width: 2 * the longest target + 1
  std::vector<std::int64_t> labels;  // (samples, width); after the end of a target blanks
  std::vector<float> may_skip;       // (samples, width): 0 where s - 2 leads to s, else kImpossible
  std::vector<float> begin;          // (samples, width): 0 where an alignment may begin, else kImpossible
  std::vector<float> end;            // the same for its end
};

std::vector<std::int64_t> values_on_host(const char* what, const Tensor& tensor, int dims) {
  check_place("ctc_loss", what, tensor, dims);
  if (tensor.dtype() != DType::kInt64)
    throw InvalidArgument("ctc_loss: {} must be int64, got {}", what, name_of(tensor.dtype()));
  const Tensor host = tensor.to(cpu_device());
  const auto values = host.span<std::int64_t>();
  return {values.begin(), values.end()};
}

void check_lengths(const char* what, std::span<const std::int64_t> lengths, std::int64_t samples, std::int64_t most) {
  if (static_cast<std::int64_t>(lengths.size()) != samples)
    throw InvalidArgument("ctc_loss: {} has {} values, expected one for each of {} samples", what, lengths.size(),
                          samples);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] < 0 || lengths[i] > most)
      throw InvalidArgument("ctc_loss: {} of sample {} is {}, expected a number from 0 to {}", what, i, lengths[i],
                            most);
}

ExtendedLabels extend_labels(std::span<const std::int64_t> targets, std::span<const std::int64_t> lengths,
                             std::int64_t stride, std::int64_t classes, std::int64_t blank) {
  const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  ExtendedLabels all{static_cast<std::int64_t>(lengths.size()), 2 * longest + 1, {}, {}, {}, {}};
  const auto count = static_cast<std::size_t>(all.samples * all.width);
  all.labels.assign(count, blank);
  all.may_skip.assign(count, kImpossible);
  all.begin.assign(count, kImpossible);
  all.end.assign(count, kImpossible);
  for (std::int64_t sample = 0; sample < all.samples; ++sample) {
    const std::int64_t length = lengths[static_cast<std::size_t>(sample)];
    const auto row = static_cast<std::size_t>(sample * all.width);
    for (std::int64_t place = 0; place < length; ++place) {
      const std::int64_t label = targets[static_cast<std::size_t>(sample * stride + place)];
      if (label < 0 || label >= classes || label == blank)
        throw InvalidArgument(
            "ctc_loss: label {} of sample {} is {}, expected one of {} classes that is not the blank, {}", place,
            sample, label, classes, blank);
      const std::size_t at = row + 2 * static_cast<std::size_t>(place) + 1;
      all.labels[at] = label;
      if (place > 0 && label != all.labels[at - 2]) all.may_skip[at] = 0;
    }
    all.begin[row] = 0;
    if (length > 0) all.begin[row + 1] = 0;
    const std::size_t last = row + 2 * static_cast<std::size_t>(length);
    all.end[last] = 0;
    if (length > 0) all.end[last - 1] = 0;
  }
  return all;
}

// alpha(t, s - shift) at s; `impossible` has `shift` columns.
Tensor shifted(const Tensor& alpha, std::int64_t shift) {
  return pad(slice(alpha, 1, {0, alpha.shape()[1] - shift}), {{0, 0}, {shift, 0}}, kImpossible);
}

}  // namespace

Tensor ctc_loss(const Tensor& given, const Tensor& targets, const Tensor& input_lengths, const Tensor& target_lengths,
                const CtcLossOptions& options) {
  check_activation("ctc_loss", "log_probabilities (N, T, C)", given, 3);
  const Tensor log_probabilities = cast(given, DType::kFloat32);
  const std::int64_t samples = given.shape()[0], steps = given.shape()[1], classes = given.shape()[2];
  if (options.blank < 0 || options.blank >= classes)
    throw InvalidArgument("ctc_loss: blank is {}, expected one of {} classes", options.blank, classes);
  const std::vector<std::int64_t> labels = values_on_host("targets (N, S)", targets, 2);
  if (targets.shape()[0] != samples)
    throw InvalidArgument("ctc_loss: targets {} must have a row for each sample of log_probabilities {}",
                          targets.shape().text(), given.shape().text());
  const std::vector<std::int64_t> inputs = values_on_host("input_lengths (N)", input_lengths, 1),
                                  lengths = values_on_host("target_lengths (N)", target_lengths, 1);
  check_lengths("input_lengths", inputs, samples, steps);
  check_lengths("target_lengths", lengths, samples, targets.shape()[1]);
  const ExtendedLabels extended = extend_labels(labels, lengths, targets.shape()[1], classes, options.blank);
  if (samples == 0)
    return reduce_losses("ctc_loss", Tensor::zeros({0}, DType::kFloat32, given.device()), options.reduction);

  Device& device = given.device();
  const Shape row{samples, extended.width};
  const auto on_device = [&](const std::vector<float>& values) {
    return Tensor::from(std::span<const float>(values), row, device);
  };
  const Tensor may_skip = on_device(extended.may_skip), begin = on_device(extended.begin),
               end = on_device(extended.end);
  std::vector<std::int64_t> places;  // the labels of each step
  places.reserve(static_cast<std::size_t>(steps) * extended.labels.size());
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const auto labels_of_sample = extended.labels.begin() + sample * extended.width;
    for (std::int64_t step = 0; step < steps; ++step)
      places.insert(places.end(), labels_of_sample, labels_of_sample + extended.width);
  }
  const Shape all{samples, steps, extended.width};
  const Tensor emitted = gather(log_probabilities, 2, Tensor::from(std::span<const std::int64_t>(places), all, device));
  // Before the first input only the begin is possible: from there the recursion's first step goes to places 0 and 1.
  Tensor alpha = begin;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Tensor now = squeeze(slice(emitted, 1, {step, step + 1}), 1);
    Tensor next = alpha + now;
    if (step > 0) {
      std::vector<Tensor> ways = {alpha};
      if (extended.width > 1) ways.push_back(shifted(alpha, 1));
      if (extended.width > 2) ways.push_back(shifted(alpha, 2) + may_skip);
      next = logsumexp(stack(ways, 0), 0) + now;
    }
    std::vector<std::uint8_t> is_within;
    for (const std::int64_t length : inputs) is_within.push_back(step < length ? 1 : 0);
    const bool all_within =
        std::all_of(is_within.begin(), is_within.end(), [](std::uint8_t within) { return within != 0; });
    const Tensor mask = Tensor::from(std::span<const std::uint8_t>(is_within), {samples, 1}, device);
    alpha = all_within ? next : where(mask, next, alpha);
  }
  // Without input only an empty target is possible, and its probability is 1.
  std::vector<float> no_input;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    no_input.push_back(inputs[i] == 0 && lengths[i] > 0 ? kImpossible : 0);
  const Tensor losses =
      neg(logsumexp(alpha + end, 1) + Tensor::from(std::span<const float>(no_input), {samples}, device));
  const float instead = options.zero_infinity ? 0 : std::numeric_limits<float>::infinity();
  Tensor finite = where(gt(losses, -kImpossible / 2), Tensor::full({samples}, instead, device), losses);
  if (options.reduction == Reduction::kMean) {
    std::vector<float> divisors;
    for (const std::int64_t length : lengths) divisors.push_back(static_cast<float>(std::max<std::int64_t>(length, 1)));
    finite = finite / Tensor::from(std::span<const float>(divisors), {samples}, device);
  }
  return reduce_losses(finite, options.reduction);
}

}  // namespace lockstep
