// CUDA for PyTorch on machines without a GPU: a tensor "on cuda:r" has its memory on the host, and its operators are
// the CPU's, ordered by the streams of a RecordingDevice. Operators that change their arguments only queue their work,
// as a GPU does, and the work is slow; the others wait for their stream. For Linear layers, losses of plain arithmetic
// and optimizers; not for what has kernels of cuDNN (convolutions, normalization).
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "tests/support/recording_device.h"

namespace lockstep::testing {

// While it lives, PyTorch's current stream of cuda:r, in all threads, is a stream of this simulated device, where r is
// the device's index (0 to 7). A program has one for each index at a time.
class HostCuda {
 public:
  explicit HostCuda(RecordingDevice& device);
  ~HostCuda();
  HostCuda(const HostCuda&) = delete;
  at::Device device() const;
  Stream& stream() { return *stream_; }

 private:
  const int index_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace lockstep::testing
