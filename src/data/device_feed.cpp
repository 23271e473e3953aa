#include "src/data/device_feed.h"

#include <utility>

#include "src/data/packed_images.h"

namespace lockstep::data {

DeviceFeed::~DeviceFeed() {
  for (HostMemory& memory : host_)
    if (memory.left) memory.left->synchronize();
}

DeviceFeed::Berth DeviceFeed::allocate(const Shape& inputs, std::int64_t targets) {
  Berth berth;
  berth.batch = {Tensor::empty(inputs, DType::kFloat32, device_), Tensor::empty({targets}, DType::kInt64, device_)};
  if (images_ != nullptr) berth.images = device_.allocate(PackedImages::bytes(image_shape(targets)));
  berth.writable = device_.new_event();
  berth.writable->record(device_.default_stream());
  berth.copied = device_.new_event();
  return berth;
}

Batch DeviceFeed::take(Berth& berth) {
  berth.copied->stream_wait(device_.default_stream());
  return std::move(berth.batch);
}

void DeviceFeed::drop_the_rest() {
  const auto copied = device_.new_event();
  copied->record(*stream_);
  copied->stream_wait(device_.default_stream());
}

Tensor DeviceFeed::view(Device& device, Buffer& memory, const Shape& shape, DType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  if (!memory || memory.bytes() < bytes) memory = device.allocate_pinned(bytes);
  return Tensor::wrap(memory, shape, dtype);
}

Batch DeviceFeed::host_batch(const Shape& inputs, std::int64_t targets) {
  turn_ = (turn_ + 1) % host_.size();
  HostMemory& memory = host_[turn_];
  if (memory.left)
    memory.left->synchronize();
  else
    memory.left = device_.new_event();
  const Tensor labels = view(device_, memory.targets, {targets}, DType::kInt64);
  if (images_ == nullptr) return {view(device_, memory.inputs, inputs, DType::kFloat32), labels};
  return {view(device_, memory.inputs, {static_cast<std::int64_t>(PackedImages::bytes(image_shape(targets)))}, DType::kUInt8), labels};
}

void DeviceFeed::copy(const Batch& from, Berth& to) {
  to.writable->stream_wait(*stream_);
  const Buffer& inputs = images_ == nullptr ? to.batch.inputs.buffer() : to.images;
  device_.copy(inputs.data(), from.inputs.buffer().data(), from.inputs.bytes(), *stream_);
  device_.copy(to.batch.targets.buffer().data(), from.targets.buffer().data(), from.targets.bytes(), *stream_);
  host_[turn_].left->record(*stream_);
  if (images_ != nullptr) {
    const ImageShape shape = image_shape(to.batch.targets.count());
    const PackedImages packed(shape, to.images.data());
    device_.kernels().families.get<AugmentKernels>().augment(shape, packed.planes(), packed.each(), to.batch.inputs.data<float>(),
                                                             *stream_);
  }
  to.copied->record(*stream_);
}

}  // namespace lockstep::data
