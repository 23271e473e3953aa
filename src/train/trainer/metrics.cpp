#include "lockstep/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::train {

namespace {

constexpr double kNoSamples = std::numeric_limits<double>::quiet_NaN();
double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? kNoSamples : static_cast<double>(part) / static_cast<double>(whole);
}

// Calls call(row, label) for each sample: each row of logits (..., K) whose label is not ignored.
template <typename Call> void for_rows(const char* metric, const Tensor& logits, const Tensor& labels,
                                       std::optional<std::int64_t> ignored, Call&& call) {
  const std::size_t dims = logits.shape().dims();
  if (dims == 0 || logits.shape()[dims - 1] == 0 || labels.shape() != Shape(logits.shape().extents().first(dims - 1)))
    throw InvalidArgument("{}: expected logits (..., K) and labels (...), got {} and {}", metric, logits.shape().text(),
                          labels.shape().text());
  const auto values = logits.span<float>();
  const auto classes = static_cast<std::size_t>(logits.shape()[dims - 1]);
  std::size_t row = 0;
  for (const std::int64_t label : labels.span<std::int64_t>()) {
    const std::size_t at = row++;
    if (label == ignored) continue;
    if (label < 0 || static_cast<std::size_t>(label) >= classes)
      throw InvalidArgument("{}: the label {} of sample {} of the batch is outside 0..{}{}", metric, label, at,
                            classes - 1, ignored ? fmt::format(", and is not ignore_index, {}", *ignored) : "");
    call(values.subspan(classes * at, classes), static_cast<std::size_t>(label));
  }
}

double cross_entropy_of(std::span<const float> row, std::size_t label) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(value - largest);
  return std::log(sum) - (row[label] - largest);
}

bool has_nan(std::span<const float> row) {
  return std::any_of(row.begin(), row.end(), [](float value) { return std::isnan(value); });
}

// An exact sum of floats: digits of 32 bits, the lowest worth 2^-149 (the smallest float32), each with room for 2^31
// additions. After them: the numbers of samples, NaNs, infinities and minus infinities.
constexpr int kDigits = 10, kLowest = -149, kDigitBits = 32;
enum : std::size_t { kSamples = kDigits, kNans, kInfinities, kMinusInfinities, kCountsOfMean };

void add_exactly(std::span<std::int64_t> digits, float value) {
  int exponent = 0;
  const auto mantissa =
      static_cast<std::int64_t>(std::ldexp(std::frexp(value, &exponent), 24));  // value = mantissa * 2^(exponent - 24)
  int place = exponent - 24 - kLowest;
  std::uint64_t bits = static_cast<std::uint64_t>(mantissa < 0 ? -mantissa : mantissa);
  if (place < 0) bits >>= -place, place = 0;  // subnormal, whose low bits are zero
  bits <<= place % kDigitBits;
  const std::int64_t sign = mantissa < 0 ? -1 : 1;
  digits[static_cast<std::size_t>(place / kDigitBits)] += sign * static_cast<std::int64_t>(bits & 0xffffffffU);
  digits[static_cast<std::size_t>(place / kDigitBits) + 1] += sign * static_cast<std::int64_t>(bits >> kDigitBits);
}

// Carries first, so that equal sums have equal digits however they were added.
double rounded(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> digits(counts.begin(), counts.begin() + kDigits);
  const bool is_negative = [&] {
    std::int64_t carry = 0;
    for (const std::int64_t digit : digits) carry = (carry + digit) >> kDigitBits;
    return carry < 0;
  }();
  std::int64_t carry = 0;
  for (std::int64_t& digit : digits) {
    const std::int64_t sum = carry + (is_negative ? -digit : digit);
    digit = sum & 0xffffffff;
    carry = sum >> kDigitBits;
  }
  double value = static_cast<double>(carry);
  for (std::size_t i = digits.size(); i-- > 0;) value = std::ldexp(value, kDigitBits) + static_cast<double>(digits[i]);
  value = std::ldexp(value, kLowest);
  return is_negative ? -value : value;
}

}  // namespace

void Metric::reset() {
  const auto all = counts();
  std::fill(all.begin(), all.end(), 0);
}

void reduce_metrics(std::span<Metric* const> metrics, ProcessGroup* group) {
  if (group == nullptr) return;
  std::vector<std::int64_t> all;
  for (Metric* const metric : metrics) all.insert(all.end(), metric->counts().begin(), metric->counts().end());
  group->all_reduce(std::span(all), ReduceOp::kSum, {.purpose = {"metrics"}});
  std::size_t next = 0;
  for (Metric* const metric : metrics)
    for (std::int64_t& count : metric->counts()) count = all[next++];
}

TopK::TopK(std::int64_t k, std::int64_t ignore_index) : k_(k), ignore_index_(ignore_index) {
  if (k < 1) throw InvalidArgument("TopK: got k {}, expected at least 1", k);
}

void TopK::update(const Tensor& logits, const Tensor& labels) {
  for_rows("TopK", logits, labels, ignore_index_, [this](std::span<const float> row, std::size_t label) {
    std::int64_t before = 0;
    for (std::size_t i = 0; i < row.size(); ++i)
      before += row[i] > row[label] || (row[i] == row[label] && i < label) ? 1 : 0;
    counts_[0] += before < k_ && !has_nan(row) ? 1 : 0;
    counts_[1] += 1;
  });
}

double TopK::value() const { return share(correct(), samples()); }

ConfusionMatrix::ConfusionMatrix(std::int64_t classes, std::int64_t ignore_index)
    : classes_(classes), ignore_index_(ignore_index) {
  if (classes < 1) throw InvalidArgument("ConfusionMatrix: got {} classes, expected at least 1", classes);
  counts_.resize(static_cast<std::size_t>(classes * (classes + 1)));
}

void ConfusionMatrix::update(const Tensor& logits, const Tensor& labels) {
  const auto classes = static_cast<std::size_t>(classes_);
  for_rows("ConfusionMatrix", logits, labels, ignore_index_, [&](std::span<const float> row, std::size_t label) {
    if (row.size() != classes)
      throw InvalidArgument("ConfusionMatrix: it has {} classes, but the logits have {}", classes, row.size());
    const auto first = static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    counts_[label * (classes + 1) + (has_nan(row) ? classes : first)] += 1;
  });
}

void ConfusionMatrix::check_class(std::int64_t index) const {
  if (index < 0 || index >= classes_)
    throw InvalidArgument("ConfusionMatrix: class {} is outside 0..{}", index, classes_ - 1);
}

std::int64_t ConfusionMatrix::at(std::int64_t label, std::int64_t predicted) const {
  check_class(label), check_class(predicted);
  return counts_[static_cast<std::size_t>(label * (classes_ + 1) + predicted)];
}

std::int64_t ConfusionMatrix::unpredicted(std::int64_t label) const {
  check_class(label);
  return counts_[static_cast<std::size_t>(label * (classes_ + 1) + classes_)];
}

double ConfusionMatrix::recall(std::int64_t label) const {
  std::int64_t all = unpredicted(label);
  for (std::int64_t predicted = 0; predicted < classes_; ++predicted) all += at(label, predicted);
  return share(at(label, label), all);
}

double ConfusionMatrix::precision(std::int64_t predicted) const {
  std::int64_t all = 0;
  for (std::int64_t label = 0; label < classes_; ++label) all += at(label, predicted);
  return share(at(predicted, predicted), all);
}

Mean::Mean(Values values, Mode better) : values_(std::move(values)), better_(better), counts_(kCountsOfMean) {}

void Mean::update(const Tensor& outputs, const Tensor& targets) {
  if (!values_)
    throw InvalidArgument("Mean::update: this metric was made without a function that returns each sample's number");
  const auto values = values_(outputs, targets);
  if (const auto samples = static_cast<std::size_t>(outputs.shape().dims() == 0 ? 1 : outputs.shape()[0]);
      values.size() != samples)
    throw InvalidArgument("Mean::update: the function returned {} numbers for {} samples; it must return one for each",
                          values.size(), samples);
  for (const float value : values) add(value);
}

void Mean::add(float value) {
  counts_[kSamples] += 1;
  if (std::isnan(value))
    counts_[kNans] += 1;
  else if (std::isinf(value))
    counts_[value > 0 ? kInfinities : kMinusInfinities] += 1;
  else
    add_exactly(counts_, value);
}

std::int64_t Mean::samples() const { return counts_[kSamples]; }

double Mean::value() const {
  const bool up = counts_[kInfinities] > 0, down = counts_[kMinusInfinities] > 0;
  if (samples() == 0 || counts_[kNans] > 0 || (up && down)) return kNoSamples;
  if (up || down) return up ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  return rounded(counts_) / static_cast<double>(samples());
}

std::vector<float> cross_entropy_of_samples(const Tensor& logits, const Tensor& labels) {
  std::vector<float> losses;
  for_rows("cross_entropy_of_samples", logits, labels, std::nullopt,
           [&](std::span<const float> row, std::size_t label) {
             losses.push_back(static_cast<float>(cross_entropy_of(row, label)));
           });
  return losses;
}

MeanCrossEntropy::MeanCrossEntropy(std::int64_t ignore_index) : Mean({}, Mode::kLess), ignore_index_(ignore_index) {}

void MeanCrossEntropy::update(const Tensor& logits, const Tensor& labels) {
  for_rows("MeanCrossEntropy", logits, labels, ignore_index_, [&](std::span<const float> row, std::size_t label) {
    add(static_cast<float>(cross_entropy_of(row, label)));
  });
}

}  // namespace lockstep::train
