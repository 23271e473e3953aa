// Graph mode: a training step - forward, backward, all-reduces, optimizer - is recorded once as a GPU graph and
// replayed by one call.
//
//   const Tensor images = Tensor::empty({128, 24, 24, 3}, DType::kFloat32, device);
//   const Tensor labels = Tensor::empty({128}, DType::kInt64, device);
//   auto step = ddp.capture([&] {
//     const Tensor loss = nn::cross_entropy(ddp(images), labels);
//     sgd.zero_grad();
//     loss.backward();
//     sgd.step();
//     return loss;
//   });
//   for (auto& batch : loader) {  // .drop_last = true: a graph has one shape
//     images.copy_from(batch.inputs());
//     labels.copy_from(batch.targets());
//     const Tensor loss = step();
//   }
//
// A replay repeats the work that the recording queued on the device: the same kernels on the same memory. Therefore
//   - inputs are tensors that you create once and fill before each step; the result is one tensor, which the next step
//     overwrites;
//   - everything that the step uses (model, optimizer, inputs) must stay in place and outlive the CapturedStep;
//   - the step's host code runs when it is recorded but not in a replay: put counters, schedules and prints outside;
//   - nothing in it may wait for the device: item(), to(cpu_device()) and a collective's wait() throw during recording.
// The learning rate and the loss scale are on the device: set_lr() before the call applies to replays as to eager
// steps. The host values that the recording depends on are monitored: the memory of weights and gradients, which
// gradients were cleared, train(), no_sync(), and AutoCast around the call. If one has changed, the step runs eagerly,
// and the next step with the same values is recorded again.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

class DistributedDataParallel;

struct CaptureOptions {
  // Steps that run eagerly, and train, before one is recorded. Libraries choose their kernels in them.
  int warm_up = 3;
};

// Returned by DistributedDataParallel::capture; movable. Use and destroy it on the training thread, before the wrapper
// is destroyed.
class CapturedStep {
 public:
  CapturedStep(DistributedDataParallel& ddp, std::function<Tensor()> step, const CaptureOptions& options);
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;
  ~CapturedStep();  // blocks until the last replay is done

  // Makes one training step: eager, recorded and launched, or replayed. Collective, and the same on all ranks. A replay
  // never waits for the device; a recording waits for pending collectives on all ranks. Throws InvalidArgument with the
  // reason if the step cannot be recorded; the step was then not made, and calling the function directly still works.
  // Throws the same exceptions as the next collective would if a peer is lost or replays another graph.
  Tensor operator()();

  struct Counts {
    std::size_t eager = 0;     // steps run by host code, including warm-up
    std::size_t recorded = 0;  // graphs made; each was also launched once
    std::size_t replayed = 0;  // later launches
  };
  const Counts& counts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
#pragma GCC visibility pop
