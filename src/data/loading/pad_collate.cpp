#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/data/collate.h"
#include "src/core/base/half.h"
#include "src/data/loading/stack.h"

namespace lockstep::data {

namespace {

template <typename T> void store(double value, std::byte* to) {
  const T converted = static_cast<T>(value);
  std::memcpy(to, &converted, sizeof(T));
}

template <typename T> bool store_integer(double value, std::byte* to) {
  // int64's maximum is not a double, so compare with 2^63, the first value beyond it.
  const double low = static_cast<double>(std::numeric_limits<T>::min()),
               beyond = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (!(value >= low && value < beyond) || value != std::trunc(value)) return false;
  store<T>(value, to);
  return true;
}

bool store_as(DType dtype, double value, std::byte* to) {
  switch (dtype) {
    case DType::kFloat32: store<float>(value, to); return true;
    case DType::kFloat64: store<double>(value, to); return true;
    case DType::kFloat16:
    case DType::kBFloat16: {
      const std::uint16_t bits = dtype == DType::kFloat16 ? narrow_float16(static_cast<float>(value)).bits
                                                          : narrow_bfloat16(static_cast<float>(value)).bits;
      std::memcpy(to, &bits, sizeof(bits));
      return true;
    }
    case DType::kInt8: return store_integer<std::int8_t>(value, to);
    case DType::kUInt8: return store_integer<std::uint8_t>(value, to);
    case DType::kInt32: return store_integer<std::int32_t>(value, to);
    case DType::kInt64: return store_integer<std::int64_t>(value, to);
  }
  return false;
}

// Fills memory with a padding value of one type.
class Padding {
 public:
  Padding(DType dtype, double value) : size_(size_of(dtype)) {
    if (!store_as(dtype, value, element_))
      throw InvalidArgument(
          "pad_collate: the value {} is not representable as {}: set PadCollateOptions::value to one that is", value,
          name_of(dtype));
  }
  void fill(std::span<std::byte> memory) const {
    for (std::size_t at = 0; at < memory.size(); at += size_) std::memcpy(memory.data() + at, element_, size_);
  }

 private:
  std::byte element_[8];
  std::size_t size_;
};

bool equal_but_for_length(const TensorSpec& a, const TensorSpec& b) {
  if (a.dtype != b.dtype || a.shape.dims() != b.shape.dims()) return false;
  for (std::size_t dim = 1; dim < a.shape.dims(); ++dim)
    if (a.shape[dim] != b.shape[dim]) return false;
  return true;
}

void check_fits(const Sample& sample, std::size_t number, const Sample& first) {
  if (sample.size() != first.size())
    throw SampleMismatch(number, 0,
                         fmt::format("pad_collate: sample {} of the batch has {} tensors, sample 0 has {}", number,
                                     sample.size(), first.size()));
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const TensorSpec actual = spec_of(sample[i]), expected = spec_of(first[i]);
    if (!equal_but_for_length(actual, expected))
      throw SampleMismatch(
          number, 0,
          fmt::format(
              "pad_collate: tensor {} of sample {} of the batch is {}, but tensor {} of sample 0 is {}: only first "
              "extents may differ",
              i, number, text_of(actual), i, text_of(expected)));
  }
}

class PadCollate {
 public:
  explicit PadCollate(const PadCollateOptions& options) : options_(options) {
    if (options.max_length < 0 || (options.to_max_length && options.max_length == 0))
      throw InvalidArgument(
          "pad_collate: max_length {} must be positive, or 0 for the length of each batch's longest sample (without "
          "to_max_length)",
          options.max_length);
  }

  Batch operator()(std::span<const Sample> samples) const {
    if (samples.empty() || samples[0].empty())
      throw InvalidArgument("pad_collate: got no samples, or samples without tensors; at least one of each is needed");
    for (std::size_t n = 0; n < samples.size(); ++n) check_fits(samples[n], n, samples[0]);
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < samples[0].size(); ++i) tensors.push_back(padded(samples, i));
    if (options_.lengths) tensors.push_back(lengths_of(samples));
    return Batch(std::move(tensors));
  }

 private:
  std::int64_t cut(const Tensor& tensor) const {
    const std::int64_t length = tensor.shape().dims() == 0 ? 1 : tensor.shape()[0];
    return options_.max_length > 0 ? std::min(length, options_.max_length) : length;
  }

  Shape padded_shape(std::span<const Sample> samples, std::size_t i) const {
    const Shape& first = samples[0][i].shape();
    if (first.dims() == 0) return first;
    std::vector<std::int64_t> extents(first.extents().begin(), first.extents().end());
    extents[0] = options_.to_max_length ? options_.max_length : 0;
    for (const Sample& sample : samples) extents[0] = std::max(extents[0], cut(sample[i]));
    return Shape(std::span<const std::int64_t>(extents));
  }

  Tensor padded(std::span<const Sample> samples, std::size_t i) const {
    const auto rows = static_cast<std::int64_t>(samples.size());
    const Tensor stacked =
        Tensor::empty(stacked_shape(rows, padded_shape(samples, i)), samples[0][i].dtype(), cpu_device());
    const bool is_target = i > 0 && i + 1 == samples[0].size();
    const Padding padding(stacked.dtype(), is_target ? options_.target_value.value_or(options_.value) : options_.value);
    for (std::int64_t n = 0; n < rows; ++n) {
      const Tensor& from = samples[static_cast<std::size_t>(n)][i];
      const std::span<std::byte> to = Row({&stacked, 1}, n, rows).bytes(0);
      const std::int64_t length = from.shape().dims() == 0 ? 1 : from.shape()[0];
      const std::size_t bytes =
          length == 0 ? 0 : from.bytes() / static_cast<std::size_t>(length) * static_cast<std::size_t>(cut(from));
      const std::size_t begin = options_.front ? to.size() - bytes : 0;
      const std::size_t lost = options_.cut_front ? from.bytes() - bytes : 0;
      if (bytes > 0) std::memcpy(to.data() + begin, from.buffer().data() + lost, bytes);
      padding.fill(options_.front ? to.first(begin) : to.subspan(bytes));
    }
    return stacked;
  }

  Tensor lengths_of(std::span<const Sample> samples) const {
    std::vector<std::int64_t> lengths;
    for (const Sample& sample : samples) lengths.push_back(cut(sample[0]));
    return Tensor::from(std::span<const std::int64_t>(lengths), {static_cast<std::int64_t>(lengths.size())},
                        cpu_device());
  }

  PadCollateOptions options_;
};

}  // namespace

Collate pad_collate(const PadCollateOptions& options) { return PadCollate(options); }
Collate pad_collate(double value) { return PadCollate({.value = value}); }

}  // namespace lockstep::data
