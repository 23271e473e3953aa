#include "src/data/loading/stack.h"

#include <cstring>

#include "lockstep/data/collate.h"

namespace lockstep::data {

std::string text_of(const TensorSpec& spec) { return fmt::format("{} {}", name_of(spec.dtype), spec.shape.text()); }

TensorSpec spec_of(const Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument("a sample has an undefined tensor");
  if (tensor.device().kind() != DeviceKind::kCpu)
    throw InvalidArgument(
        "a sample has a tensor on {}, expected the CPU: the loader moves whole batches, to the device in its options",
        tensor.device().name());
  return {tensor.shape(), tensor.dtype()};
}

void check_on_cpu(const char* maker, const Batch& batch, const char* device_option) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].defined()) throw InvalidArgument("{} returned an undefined tensor as tensor {} of a batch", maker, i);
    if (batch[i].device().kind() != DeviceKind::kCpu)
      throw InvalidArgument(
          "{} returned a tensor on {} as tensor {} of a batch, expected the CPU: the loader moves batches, to {}",
          maker, batch[i].device().name(), i, device_option);
  }
}

Shape stacked_shape(std::int64_t rows, const Shape& sample) {
  std::vector<std::int64_t> extents = {rows};
  extents.insert(extents.end(), sample.extents().begin(), sample.extents().end());
  return Shape(std::span<const std::int64_t>(extents));
}

void copy_to_row(const Tensor& tensor, std::size_t i, const Row& row) {
  const std::span<std::byte> to = row.bytes(i);
  LOCKSTEP_CHECK(to.size() == tensor.bytes(), "got {} bytes for a row of {}", tensor.bytes(), to.size());
  if (!to.empty()) std::memcpy(to.data(), tensor.buffer().data(), to.size());
}

namespace {

void check_equal(const Sample& sample, std::size_t number, const Sample& first) {
  if (sample.size() != first.size())
    throw SampleMismatch(number, 0,
                         fmt::format("stack: sample {} of the batch has {} tensors, sample 0 has {}", number,
                                     sample.size(), first.size()));
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const TensorSpec actual = spec_of(sample[i]), expected = spec_of(first[i]);
    if (actual != expected)
      throw SampleMismatch(
          number, 0,
          fmt::format(
              "stack: tensor {} of sample {} of the batch is {}, but tensor {} of sample 0 is {}: for sequences of "
              "different lengths set the loader's option collate = pad_collate()",
              i, number, text_of(actual), i, text_of(expected)));
  }
}

}  // namespace

Batch stack(std::span<const Sample> samples) {
  if (samples.empty() || samples[0].empty())
    throw InvalidArgument("stack: got no samples, or samples without tensors; at least one of each is needed");
  for (std::size_t n = 0; n < samples.size(); ++n) check_equal(samples[n], n, samples[0]);
  const auto rows = static_cast<std::int64_t>(samples.size());
  std::vector<Tensor> stacked;
  for (const Tensor& tensor : samples[0])
    stacked.push_back(Tensor::empty(stacked_shape(rows, tensor.shape()), tensor.dtype(), cpu_device()));
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::size_t i = 0; i < stacked.size(); ++i)
      copy_to_row(samples[static_cast<std::size_t>(n)][i], i, Row(stacked, n, rows));
  return Batch(std::move(stacked));
}

}  // namespace lockstep::data
