// Batches on their way into a GPU: filled in pinned memory and copied on a stream of their own, beside the computation.
//
// Images of an ImageSource travel as bytes; the device makes the inputs of them, on the same stream.
//
// The thread that computes allocates the device's memory, in whose stream's order memory is handed out, and takes the batches; the
// loader's thread fills and copies, and touches no stream but its own. Between them stand two events a batch: the memory may be
// written; the batch is there. The computing host waits for neither.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "lockstep/core/device.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

class DeviceFeed {
 public:
  DeviceFeed(Device& device, const ImageSource* images) : device_(device), images_(images), stream_(device.new_stream()) {}
  ~DeviceFeed();  // waits for copies that are under way

  // Device memory for one batch, and the marks of its journey.
  struct Berth {
    Batch batch;
    Buffer images;  // as they came, of an ImageSource
    std::unique_ptr<Event> writable, copied;
  };

  // The computing thread's.
  Berth allocate(const Shape& inputs, std::int64_t targets);
  Batch take(Berth& berth);  // the default stream goes on when the batch is there
  // Drops the batches that were not taken: the default stream, in whose order their memory is used again, waits for the copies.
  void drop_the_rest();

  // The loader's thread's. Host memory for a batch, which waits until the copy before last has left it; then its copy. Of a
  // ImageSource the inputs are bytes: PackedImages.
  Batch host_batch(const Shape& inputs, std::int64_t targets);
  ImageShape image_shape(std::int64_t batch) const { return {batch, images_->side(), images_->crop()}; }
  const ImageSource* images() const { return images_; }
  void copy(const Batch& from, Berth& to);

 private:
  struct HostMemory {
    Buffer inputs, targets;
    std::unique_ptr<Event> left;  // copied out of it
  };
  static Tensor view(Device& device, Buffer& memory, const Shape& shape, DType dtype);

  Device& device_;
  const ImageSource* images_;  // may be null
  std::unique_ptr<Stream> stream_;
  std::array<HostMemory, 2> host_;  // one is copied while the other is filled
  std::size_t turn_ = 0;
};

}  // namespace lockstep::data
