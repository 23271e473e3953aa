// The order between work on torch's current CUDA stream and work on the group's device, which has streams of its own.
// On the CPU, where a call has completed when it returns, these functions do nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "lockstep/core/device.h"

namespace lockstep {

// None of them blocks the host. The members are for one thread at a time, as autograd's threads and the training loop
// take turns.
class TorchStreams {
 public:
  // `tensors` is the device of the module; `device`, the group's, is the same GPU if that is a GPU.
  TorchStreams(Device& device, at::Device tensors);

  // What is queued on the device's default stream from now on, and so each collective, runs after all that the calling
  // thread's current stream of torch has been given.
  void ours_after_torch();
  // What torch's current stream is given from now on runs after what the device's default stream has, and so after the
  // collectives for which that waits.
  void torch_after_ours();
  // True if torch records its current stream as a graph.
  bool is_capturing() const;

 private:
  Device& device_;
  const at::Device tensors_;
  std::unique_ptr<Event> event_;  // null on the CPU
};

}  // namespace lockstep
