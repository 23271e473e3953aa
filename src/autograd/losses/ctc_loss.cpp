// CTC (kernels/ctc_labels.h has the recursion). The loss of a sample is computed by the kernels; what is not a number
// of the recursion, the reduction and zero_infinity, is composed.
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

// Saved: the log probabilities, labels, lengths, alpha, and the losses.
class CtcLossNode : public Node {
 public:
  CtcLossNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, std::int64_t blank)
      : Node(std::move(inputs), std::move(saved)), blank_(blank) {}
  const char* name() const override { return "ctc_loss"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"blank", blank_}}; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .ctc_loss_backward(blank_, saved(0), saved(1), saved(2), saved(3), saved(4), result_grad, targets[0],
                           stream_of(result_grad));
  }

 private:
  std::int64_t blank_;
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

void check_labels(std::span<const std::int64_t> targets, std::span<const std::int64_t> lengths, std::int64_t row,
                  std::int64_t classes, std::int64_t blank) {
  for (std::size_t sample = 0; sample < lengths.size(); ++sample)
    for (std::int64_t place = 0; place < lengths[sample]; ++place) {
      const std::int64_t label = targets[sample * static_cast<std::size_t>(row) + static_cast<std::size_t>(place)];
      if (label < 0 || label >= classes || label == blank)
        throw InvalidArgument(
            "ctc_loss: label {} of sample {} is {}, expected one of {} classes that is not the blank, {}", place,
            sample, label, classes, blank);
    }
}

// The loss of each sample.
Tensor sample_losses(const Tensor& log_probabilities, const Tensor& labels, const Tensor& lengths, std::int64_t blank) {
  const Shape& x = log_probabilities.shape();
  const Tensor alpha = empty_like(log_probabilities, {x[0], x[1], 2 * labels.shape()[1] + 1}),
               losses = empty_like(log_probabilities, {x[0]});
  kernels_of(log_probabilities)
      .ctc_loss(blank, log_probabilities, labels, lengths, alpha, losses, stream_of(log_probabilities));
  record<CtcLossNode>(losses, {log_probabilities},
                      std::vector{log_probabilities, labels, lengths, alpha, detach(losses)}, blank);
  return losses;
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
  check_labels(labels, lengths, targets.shape()[1], classes, options.blank);
  if (samples == 0)
    return reduce_losses("ctc_loss", Tensor::zeros({0}, DType::kFloat32, given.device()), options.reduction);

  Device& device = given.device();
  // Only as many labels as the longest target has.
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::int64_t> used, all_lengths = inputs;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const auto first = labels.begin() + sample * targets.shape()[1];
    used.insert(used.end(), first, first + longest);
  }
  all_lengths.insert(all_lengths.end(), lengths.begin(), lengths.end());
  Tensor losses =
      sample_losses(log_probabilities, Tensor::from(std::span<const std::int64_t>(used), {samples, longest}, device),
                    Tensor::from(std::span<const std::int64_t>(all_lengths), {2, samples}, device), options.blank);
  if (options.zero_infinity)
    losses = where(eq(losses, std::numeric_limits<float>::infinity()), Tensor::full({samples}, 0, device), losses);
  if (options.reduction == Reduction::kMean) {
    std::vector<float> divisors;
    for (const std::int64_t length : lengths) divisors.push_back(static_cast<float>(std::max<std::int64_t>(length, 1)));
    losses = losses / Tensor::from(std::span<const float>(divisors), {samples}, device);
  }
  return reduce_losses(losses, options.reduction);
}

}  // namespace lockstep
