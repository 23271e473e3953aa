// The parts of a batch on several devices.
#include <algorithm>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

void check_samples(const char* strategy, const Tensor& inputs, const Tensor& targets) {
  const std::int64_t samples = inputs.shape().dims() == 0 ? 0 : inputs.shape()[0];
  const std::int64_t wanted = targets.shape().dims() == 0 ? 0 : targets.shape()[0];
  if (samples != wanted)
    throw InvalidArgument("{}: got {} inputs but {} targets; the counts must match", strategy, samples, wanted);
  if (samples == 0) throw InvalidArgument("{}: a step got no samples; it needs at least one", strategy);
}

void check_batch(const char* strategy, const Tensor& inputs, const Tensor& targets, std::size_t devices) {
  check_samples(strategy, inputs, targets);
  const std::int64_t samples = inputs.shape()[0];
  const auto parts = static_cast<std::int64_t>(devices);
  if (samples % parts != 0)
    throw InvalidArgument(
        "{}: {} samples per step cannot be split evenly among {} devices: choose a batch that is a multiple of {}",
        strategy, samples, parts, parts);
}

void weighted_backward(const Tensor& loss, float weight) {
  if (weight == 1)
    loss.backward();
  else
    loss.backward({.gradient = Tensor::full(loss.shape(), weight, loss.device())});
}

PartRows rows_of(std::int64_t rows, int part, int parts) {
  const std::int64_t least = rows / parts, longer = rows % parts;
  return {part * least + std::min<std::int64_t>(part, longer), least + (part < longer ? 1 : 0)};
}

float weight_of_part(const Tensor& whole, int part, int parts) {
  const std::int64_t rows = whole.shape()[0], own = rows_of(rows, part, parts).count;
  if (rows % parts == 0) return 1;
  return static_cast<float>(static_cast<double>(own) * parts / static_cast<double>(rows));
}

Tensor view_of_rows(const Tensor& whole, const PartRows& rows) {
  const std::size_t row_bytes = whole.bytes() / static_cast<std::size_t>(whole.shape()[0]);
  std::vector<std::int64_t> extents(whole.shape().extents().begin(), whole.shape().extents().end());
  extents[0] = rows.count;
  return Tensor::wrap(whole.buffer().window(static_cast<std::size_t>(rows.begin) * row_bytes,
                                            static_cast<std::size_t>(rows.count) * row_bytes),
                      Shape(extents), whole.dtype());
}

Tensor rows_of_part(const char* strategy, const Tensor& whole, int part, int parts, Device& device) {
  const PartRows rows = rows_of(whole.shape()[0], part, parts);
  LOCKSTEP_CHECK(rows.count > 0, "{}: part {} of {} has none of {} rows", strategy, part, parts, whole.shape()[0]);
  return view_of_rows(whole, rows).to(device);
}

SampleNumbers numbers_of_part(const SampleNumbers& numbers, const Tensor& whole, int part, int parts) {
  return numbers.from_row(rows_of(whole.shape()[0], part, parts).begin);
}

}  // namespace lockstep::train
