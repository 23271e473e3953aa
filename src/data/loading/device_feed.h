// Moves batches to a GPU: threads fill pinned memory, and a separate stream copies it while the GPU computes.
//
// Images of an ImageSource travel as bytes; the GPU makes the inputs from them on the same stream.
//
// The computing thread allocates the device memory, because memory is reused in the order of its stream, and takes the
// batches. The loader's threads fill the pinned memory. Two events per batch connect the streams: one says that the
// memory may be written, the other that the batch is complete. The computing host waits for neither.
//
// When the batches' shapes are known, memory on both sides is allocated in advance and a loader thread queues the
// copies. With a collate function the shapes are known only when a batch is complete, so the computing thread allocates
// the memory and queues the copy.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

class DeviceFeed {
 public:
  // Pinned memory for batches of known shapes has `turns` places: batch b uses place b % turns.
  DeviceFeed(Device& device, const ImageSource* images, std::size_t turns)
      : device_(device), images_(images), stream_(device.new_stream()), host_(turns) {}
  ~DeviceFeed();  // blocks until pending copies are complete

  // Device memory for one batch, and the events that order its copy.
  struct DeviceBatch {
    Batch batch;
    Buffer images;  // stored images of an ImageSource
    Batch pinned;   // batch of a collate function, until start()
    std::unique_ptr<Event> writable, copied;
  };

  // For the computing thread. Allocates memory for `rows` samples of `spec`.
  DeviceBatch allocate(std::span<const TensorSpec> spec, std::int64_t rows);
  // Allocates memory for the result of pin() and queues its copy.
  void start(DeviceBatch& batch);
  Batch take(DeviceBatch& batch);  // the default stream waits until the copy is complete
  // Drops the batches that were not taken. The default stream, which orders the reuse of their memory, waits for their
  // copies.
  void drop_the_rest();

  // For a loader thread. Returns host memory for batch `number`; blocks until the previous batch in its place is
  // copied. For an ImageSource, tensor 0 holds PackedImages as bytes.
  std::vector<Tensor> host_batch(std::int64_t number, std::span<const TensorSpec> spec, std::int64_t rows);
  DeviceBatch pin(const Batch& batch);  // copies into pinned memory
  // Queues the copy of batch `number`. One thread at a time.
  void copy(std::int64_t number, std::span<const Tensor> from, DeviceBatch& to);

  ImageShape image_shape(std::int64_t batch) const { return {batch, images_->side(), images_->crop()}; }
  const ImageSource* images() const { return images_; }

 private:
  struct HostMemory {
    std::vector<Buffer> tensors;
    std::unique_ptr<Event> left;  // records that the memory was copied
  };
  struct Leaving {
    Batch pinned;
    std::unique_ptr<Event> left;
  };
  HostMemory& place_of(std::int64_t number) { return host_[static_cast<std::size_t>(number) % host_.size()]; }
  void mark_writable(DeviceBatch& batch);

  Device& device_;
  const ImageSource* images_;  // may be null
  std::unique_ptr<Stream> stream_;
  std::vector<HostMemory> host_;
  std::deque<Leaving> leaving_;  // batches of a collate function whose copies are pending
};

}  // namespace lockstep::data
