#include "src/data/loading/device_feed.h"

#include <cstring>
#include <utility>

#include "src/data/loading/stack.h"
#include "src/data/sets/packed_images.h"

namespace lockstep::data {

DeviceFeed::~DeviceFeed() {
  for (HostMemory& memory : host_)
    if (memory.left) memory.left->synchronize();
  for (Leaving& leaving : leaving_) leaving.left->synchronize();
}

void DeviceFeed::mark_writable(DeviceBatch& batch) {
  batch.writable = device_.new_event();
  batch.writable->record(device_.default_stream());
  batch.copied = device_.new_event();
}

DeviceFeed::DeviceBatch DeviceFeed::allocate(std::span<const TensorSpec> spec, std::int64_t rows) {
  std::vector<Tensor> tensors;
  for (const TensorSpec& each : spec)
    tensors.push_back(Tensor::empty(stacked_shape(rows, each.shape), each.dtype, device_));
  DeviceBatch batch{.batch = Batch(std::move(tensors)), .images = {}, .pinned = {}, .writable = {}, .copied = {}};
  if (images_ != nullptr) batch.images = device_.allocate(PackedImages::bytes(image_shape(rows)));
  mark_writable(batch);
  return batch;
}

Batch DeviceFeed::take(DeviceBatch& batch) {
  batch.copied->stream_wait(device_.default_stream());
  return std::move(batch.batch);
}

void DeviceFeed::drop_the_rest() {
  const auto copied = device_.new_event();
  copied->record(*stream_);
  copied->stream_wait(device_.default_stream());
}

std::vector<Tensor> DeviceFeed::host_batch(std::int64_t number, std::span<const TensorSpec> spec, std::int64_t rows) {
  HostMemory& memory = place_of(number);
  if (memory.left)
    memory.left->synchronize();
  else
    memory.left = device_.new_event();
  memory.tensors.resize(spec.size());
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < spec.size(); ++i) {
    const bool packed = i == 0 && images_ != nullptr;
    const Shape shape = packed ? Shape{static_cast<std::int64_t>(PackedImages::bytes(image_shape(rows)))}
                               : stacked_shape(rows, spec[i].shape);
    const DType dtype = packed ? DType::kUInt8 : spec[i].dtype;
    const std::size_t bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
    Buffer& buffer = memory.tensors[i];
    if (!buffer || buffer.bytes() < bytes) buffer = device_.allocate_pinned(bytes);
    tensors.push_back(Tensor::wrap(buffer, shape, dtype));
  }
  return tensors;
}

void DeviceFeed::copy(std::int64_t number, std::span<const Tensor> from, DeviceBatch& to) {
  to.writable->stream_wait(*stream_);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const Buffer& buffer = i == 0 && images_ != nullptr ? to.images : to.batch[i].buffer();
    device_.copy(buffer.data(), from[i].buffer().data(), from[i].bytes(), *stream_);
  }
  place_of(number).left->record(*stream_);
  if (images_ != nullptr) {
    const ImageShape shape = image_shape(to.batch.targets().count());
    const PackedImages packed(shape, to.images.data());
    device_.kernels().families.get<AugmentKernels>().augment(shape, images_->normalization(), packed.planes(),
                                                             packed.each(), to.batch.inputs().data<float>(), *stream_);
  }
  to.copied->record(*stream_);
}

DeviceFeed::DeviceBatch DeviceFeed::pin(const Batch& batch) {
  std::vector<Tensor> pinned;
  for (const Tensor& tensor : batch) {
    const Tensor copy = Tensor::wrap(device_.allocate_pinned(tensor.bytes()), tensor.shape(), tensor.dtype());
    if (tensor.bytes() > 0) std::memcpy(copy.buffer().data(), tensor.buffer().data(), tensor.bytes());
    pinned.push_back(copy);
  }
  return {.batch = {}, .images = {}, .pinned = Batch(std::move(pinned)), .writable = {}, .copied = {}};
}

void DeviceFeed::start(DeviceBatch& batch) {
  while (!leaving_.empty() && leaving_.front().left->done()) leaving_.pop_front();
  std::vector<Tensor> tensors;
  for (const Tensor& tensor : batch.pinned) tensors.push_back(Tensor::empty(tensor.shape(), tensor.dtype(), device_));
  mark_writable(batch);
  leaving_.push_back({std::move(batch.pinned), device_.new_event()});
  const Leaving& leaving = leaving_.back();
  leaving.left->record(*stream_);  // recorded here so that it can be waited for whatever happens below
  batch.writable->stream_wait(*stream_);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    device_.copy(tensors[i].buffer().data(), leaving.pinned[i].buffer().data(), tensors[i].bytes(), *stream_);
  leaving.left->record(*stream_);
  batch.copied->record(*stream_);
  batch.batch = Batch(std::move(tensors));
}

}  // namespace lockstep::data
