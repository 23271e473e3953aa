#include <string>

#include "lockstep/autograd/ops.h"
#include "src/autograd/losses/probability_losses.h"
#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

constexpr const char *kCrossEntropy = "softmax_cross_entropy", *kNllLoss = "nll_loss";

// Inputs: logits, and targets if they are floats. Saved: logits, statistics of the rows, targets, weight, divisor.
class CrossEntropyNode : public Node {
 public:
  CrossEntropyNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const CrossEntropyParams& params,
                   const Shape& rows)
      : Node(std::move(inputs), std::move(saved)), params_(params), rows_(rows) {}
  const char* name() const override { return kCrossEntropy; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (targets[0])
      kernels_of(result_grad)
          .softmax_cross_entropy_backward(params_, in_shape(saved(0), rows_), saved(1), in_rows(saved(2)), saved(3),
                                          saved(4), result_grad, out_shape(targets[0], rows_), stream_of(result_grad));
    if (targets.size() > 1 && targets[1]) give_to_targets(result_grad, targets[1]);
  }

 private:
  InputView in_rows(const Tensor& targets) const {
    return targets.dtype() == DType::kInt64 ? in_shape(targets, {rows_[0]}) : in_shape(targets, rows_);
  }

  // The derivative with respect to a target t_k: -(1 - s) * weight_k * log softmax(logits)_k.
  void give_to_targets(const Tensor& result_grad, const GradTarget& target) const {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    const Tensor slopes = empty_like(result_grad, rows_);
    kernels.softmax(in_shape(saved(0), rows_), true, slopes, stream);
    const bool is_row_by_row = params_.reduction == Reduction::kNone;
    kernels.binary(BinaryFunction::kMul, slopes, in_shape(result_grad, is_row_by_row ? Shape{rows_[0], 1} : Shape{}),
                   slopes, stream);
    if (saved(3).defined()) kernels.binary(BinaryFunction::kMul, slopes, saved(3), slopes, stream);
    const float divisor = params_.reduction == Reduction::kMean ? static_cast<float>(rows_[0]) : 1.0F;
    kernels.scale(slopes, -(1 - params_.label_smoothing) / divisor, out_shape(target, rows_), stream);
  }

  CrossEntropyParams params_;
  Shape rows_;
};

// Saved: labels, weight, divisor.
class NllLossNode : public Node {
 public:
  NllLossNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const CrossEntropyParams& params,
              const Shape& rows)
      : Node(std::move(inputs), std::move(saved)), params_(params), rows_(rows) {}
  const char* name() const override { return kNllLoss; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .nll_loss_backward(params_, in_shape(saved(0), {rows_[0]}), saved(1), saved(2), result_grad,
                           out_shape(targets[0], rows_), stream_of(result_grad));
  }

 private:
  CrossEntropyParams params_;
  Shape rows_;
};

std::string text_of(const Tensor& x) {
  return x.defined() ? fmt::format("{} {}", name_of(x.dtype()), x.shape().text()) : "an undefined tensor";
}

// "in row 3" of labels (N), "at (1, 3)" of others.
std::string place_of(std::int64_t index, const Shape& shape) {
  if (shape.dims() == 1) return fmt::format("in row {}", index);
  std::string text;
  for (std::size_t dim = shape.dims(); dim-- > 0; index /= shape[dim])
    text = fmt::format("{}{}{}", index % shape[dim], text.empty() ? "" : ", ", text);
  return fmt::format("at ({})", text);
}

// Checks labels only on the CPU. On a GPU the host would have to wait for them; there an invalid label makes the loss
// NaN.
void check_label_values(const char* operation, const Tensor& labels, std::int64_t classes, std::int64_t ignored) {
  if (labels.device().kind() != DeviceKind::kCpu) return;
  const auto values = labels.span<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); ++i)
    if ((values[i] < 0 || values[i] >= classes) && values[i] != ignored)
      throw InvalidArgument("{}: label {} {} is outside 0..{} and is not ignore_index, {}", operation, values[i],
                            place_of(static_cast<std::int64_t>(i), labels.shape()), classes - 1, ignored);
}

// Scores (..., K) that messages call `what`.
struct Scores {
  const char *operation, *what;
  const Tensor& values;
  Reduction reduction;

  Shape rows() const { return rows_of(operation, values); }
  Shape without_classes() const { return Shape(values.shape().extents().first(values.shape().dims() - 1)); }
};

void check_targets(const Scores& scores, const Tensor& targets, bool takes_floats) {
  const Shape rows = scores.rows(), wanted = scores.without_classes();
  const bool are_labels = targets.defined() && targets.dtype() == DType::kInt64 && targets.shape() == wanted;
  const bool are_floats =
      takes_floats && targets.defined() && targets.shape() == scores.values.shape() &&
      (targets.dtype() == DType::kFloat32 || targets.dtype() == DType::kBFloat16 || targets.dtype() == DType::kFloat16);
  if (!are_labels && !are_floats)
    throw InvalidArgument("{}: labels must be int64 {}{}, got {}", scores.operation, wanted.text(),
                          takes_floats ? fmt::format(", or soft targets, floats {}", scores.values.shape().text()) : "",
                          text_of(targets));
  if (&targets.device() != &scores.values.device())
    throw InvalidArgument(
        "{}: labels are on {}, but {} are on {}: move a module or a tensor with .to(device), batches with "
        "DataLoaderOptions::device",
        scores.operation, targets.device().name(), scores.what, scores.values.device().name());
  if (rows[1] == 0 || (rows[0] == 0 && scores.reduction == Reduction::kMean))
    throw InvalidArgument("{}: {} {} are empty, so their mean loss is undefined", scores.operation, scores.what,
                          scores.values.shape().text());
}

void check_weight(const Scores& scores, const Tensor& weight) {
  if (!weight.defined()) return;
  const std::int64_t classes = scores.rows()[1];
  check_input(scores.operation, "weight (K)", weight, 1, &scores.values.device());
  if (weight.count() != classes)
    throw InvalidArgument("{}: {} {} must have one element for each of the {} classes of {} {}", scores.operation,
                          name_argument("weight", weight), weight.shape().text(), classes, scores.what,
                          scores.values.shape().text());
  if (requires_grad(weight))
    throw InvalidArgument(
        "{}: {} requires a gradient, but classes' weights are not differentiated: pass detach(weight)",
        scores.operation, name_argument("weight", weight));
}

// The results of a loss: the loss itself, and the divisor of a mean.
struct RowLoss {
  Tensor loss, divisor;
  explicit RowLoss(const Scores& scores)
      : loss(empty_like(scores.values, scores.reduction == Reduction::kNone ? scores.without_classes() : Shape{},
                        DType::kFloat32)),
        divisor(scores.reduction == Reduction::kMean ? empty_like(scores.values, {}, DType::kFloat32) : Tensor()) {}
};

}  // namespace

Tensor softmax_cross_entropy(const Tensor& given, const Tensor& wanted, const CrossEntropyOptions& options) {
  check_activation(kCrossEntropy, "logits (..., K)", given);
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    throw InvalidArgument("{}: label_smoothing {} is outside 0..1", kCrossEntropy, options.label_smoothing);
  if (!options.from_logits) return cross_entropy_of_probabilities(given, wanted, options);
  const Scores scores{kCrossEntropy, "logits", given, options.reduction};
  const Shape rows = scores.rows();
  check_targets(scores, wanted, true);
  check_weight(scores, options.weight);
  const bool are_labels = wanted.dtype() == DType::kInt64;
  const Tensor logits = are_labels ? given : cast(given, DType::kFloat32);  // the targets' gradient needs them wide
  if (are_labels) check_label_values(kCrossEntropy, wanted, rows[1], options.ignore_index);
  if (!are_labels && options.ignore_index != kIgnoreIndex)
    throw InvalidArgument(
        "{}: ignore_index {} only applies to labels, but the targets are {}: use targets of 0 for such rows",
        kCrossEntropy, options.ignore_index, text_of(wanted));
  const Tensor targets = are_labels ? wanted : cast(wanted, DType::kFloat32);
  const CrossEntropyParams params{options.label_smoothing, options.reduction, options.ignore_index};
  const RowLoss result(scores);
  const Tensor statistics = empty_like(logits, {rows[0], 2}, DType::kFloat32);
  kernels_of(logits).softmax_cross_entropy(params, in_shape(logits, rows),
                                           in_shape(targets, are_labels ? Shape{rows[0]} : rows), options.weight,
                                           result.loss, result.divisor, statistics, stream_of(logits));
  record<CrossEntropyNode>(result.loss, are_labels ? std::vector{logits} : std::vector{logits, targets},
                           std::vector{logits, statistics, targets, options.weight, result.divisor}, params, rows);
  return result.loss;
}

Tensor nll_loss(const Tensor& given, const Tensor& labels, const NllLossOptions& options) {
  check_activation(kNllLoss, "log_probabilities (..., K)", given);
  const Tensor log_probabilities = cast(given, DType::kFloat32);
  const Scores scores{kNllLoss, "log_probabilities", log_probabilities, options.reduction};
  const Shape rows = scores.rows();
  check_targets(scores, labels, false);
  check_weight(scores, options.weight);
  check_label_values(kNllLoss, labels, rows[1], options.ignore_index);
  const CrossEntropyParams params{0, options.reduction, options.ignore_index};
  const RowLoss result(scores);
  kernels_of(labels).nll_loss(params, in_shape(log_probabilities, rows), in_shape(labels, {rows[0]}), options.weight,
                              result.loss, result.divisor, stream_of(labels));
  record<NllLossNode>(result.loss, {log_probabilities}, std::vector{labels, options.weight, result.divisor}, params,
                      rows);
  return result.loss;
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels, Reduction reduction) {
  return nll_loss(log_probabilities, labels, NllLossOptions{.reduction = reduction});
}

}  // namespace lockstep
