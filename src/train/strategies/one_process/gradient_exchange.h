// The mean of the gradients of all copies of a model in this process, on every copy.
//
// A step calls begin(), then on each copy's thread finish() after its backward pass, and settle() when all threads have
// ended. A thread that fails calls stop() in place of finish(): the others would wait for it.
#pragma once

#include <memory>
#include <string>

#include "src/train/strategies/one_process/device_copies.h"

namespace lockstep::train {

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;

  virtual void begin() {}
  virtual void finish(int copy) = 0;
  virtual void stop(int /*copy*/, const std::string& /*reason*/) {}
  // Afterwards each parameter that any copy's backward reached has the mean of all copies' gradients, where a copy
  // without one counts as zero. A parameter that none reached has no gradient. Counts the bytes.
  virtual void settle() = 0;
};

// All-reduces buckets of gradients while backward runs, as DistributedDataParallel does, in a group whose ranks are the
// threads of the copies: shared memory between logical CPUs, NCCL between GPUs. The gradients move into the buckets.
// Throws what ThreadGroup throws, if ThreadGroup::refusal() is not empty. `copies` must outlive it.
std::unique_ptr<GradientExchange> make_bucket_exchange(DeviceCopies& copies);

// Adds the gradients after all backward passes, each device a part of them, by copies between the devices: for devices
// that form no group of threads. The parameters are float32.
std::unique_ptr<GradientExchange> make_peer_exchange(DeviceCopies& copies);

}  // namespace lockstep::train
