// Batches on their way into a GPU: filled in pinned memory and copied on a stream of their own, beside the computation.
//
// Images of an ImageSource travel as bytes; the device makes the inputs of them, on the same stream.
//
// The thread that computes allocates the device's memory, in whose stream's order memory is handed out, and takes the
// batches; the loader's threads fill pinned memory. Between the streams stand two events a batch: the memory may be
// written; the batch is there. The computing host waits for neither.
//
// Batches of known shapes: memory on both sides is there before they are, and a loader's thread queues their copies.
// Batches of a collate function: their shapes are known when they are there, so the computing thread allocates and
// queues.
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
  // Pinned memory for batches of known shapes has `turns` places: batch b is filled in place b % turns.
  DeviceFeed(Device& device, const ImageSource* images, std::size_t turns)
      : device_(device), images_(images), stream_(device.new_stream()), host_(turns) {}
  ~DeviceFeed();  // waits for copies that are under way

  // Device memory for one batch, and the marks of its journey.
  struct Berth {
    Batch batch;
    Buffer images;  // as they came, of an ImageSource
    Batch pinned;   // of a collate function, until start()
    std::unique_ptr<Event> writable, copied;
  };

  // The computing thread's. Memory for `rows` samples of `spec`.
  Berth allocate(std::span<const TensorSpec> spec, std::int64_t rows);
  // Allocates memory for what pin() gave, and queues its copy.
  void start(Berth& berth);
  Batch take(Berth& berth);  // the default stream goes on when the batch is there
  // Drops the batches that were not taken: the default stream, in whose order their memory is used again, waits for the
  // copies.
  void drop_the_rest();

  // A loader's thread's. Host memory for batch `number`, which waits until the copy of the last batch in its place has
  // left it. Of an ImageSource the inputs are bytes: PackedImages.
  std::vector<Tensor> host_batch(std::int64_t number, std::span<const TensorSpec> spec, std::int64_t rows);
  Berth pin(const Batch& batch);  // a copy in pinned memory
  // One thread at a time. Queues the copy of batch `number`.
  void copy(std::int64_t number, std::span<const Tensor> from, Berth& to);

  ImageShape image_shape(std::int64_t batch) const { return {batch, images_->side(), images_->crop()}; }
  const ImageSource* images() const { return images_; }

 private:
  struct HostMemory {
    std::vector<Buffer> tensors;
    std::unique_ptr<Event> left;  // copied out of it
  };
  struct Leaving {
    Batch pinned;
    std::unique_ptr<Event> left;
  };
  HostMemory& place_of(std::int64_t number) { return host_[static_cast<std::size_t>(number) % host_.size()]; }
  void mark_writable(Berth& berth);

  Device& device_;
  const ImageSource* images_;  // may be null
  std::unique_ptr<Stream> stream_;
  std::vector<HostMemory> host_;
  std::deque<Leaving> leaving_;  // batches of a collate function that are being copied
};

}  // namespace lockstep::data
