// The order between work on torch's current CUDA stream and work on the group's device, which has streams of its own.
// On the CPU, where a call has completed when it returns, these functions do nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

#include "lockstep/core/device.h"

namespace lockstep {

// Thread-safe: the last view of a gradient may be dropped by any thread. No member blocks the host, or changes the
// calling thread's current CUDA device.
class TorchStreams {
 public:
  // `tensors` is the device of the module; `device`, the group's, is the same GPU if that is a GPU.
  TorchStreams(Device& device, at::Device tensors);

  // Later work on the device's default stream, and so each collective, runs after the work that is now queued on the
  // calling thread's current stream of torch.
  void ours_after_torch();
  // Later work on torch's current stream runs after the work that is now queued on the device's default stream, and
  // after the collectives for which that waits.
  void torch_after_ours();
  // True while torch captures its current stream as a graph.
  bool is_capturing() const;
  // Gives memory back that torch's current stream may still use.
  void release(Buffer memory) noexcept;

  Device& device() const { return device_; }

 private:
  void order(bool torch_first);

  Device& device_;
  const at::Device tensors_;
  std::mutex mutex_;              // for the event, between its record and the wait for that
  std::unique_ptr<Event> event_;  // null on the CPU
};

}  // namespace lockstep
