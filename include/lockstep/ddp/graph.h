// Graph mode: a training step - forward, backward, all-reduces, optimizer - recorded once as a graph of the GPU and
// replayed by one call.
//
//   const Tensor images = Tensor::empty({128, 24, 24, 3}, DType::kFloat32, device), labels = Tensor::empty({128},
//   DType::kInt64, device); auto step = ddp.capture([&] {
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
// A replay repeats what the recording queued on the device: the same kernels on the same memory. So
//   - inputs are tensors of the user's, made before and filled before each step; the result is one tensor, which the
//   next step overwrites;
//   - all that the step uses (model, optimizer, inputs) stays where it is and outlives the CapturedStep;
//   - the host's code of the step runs when it is recorded, and not in a replay: counters, schedules and prints belong
//   outside;
//   - nothing in it may wait for the device: item(), to(cpu_device()), a collective's wait(). That throws when it is
//   recorded.
// The learning rate lives on the device, as a loss scale does: set_lr() before the call holds for a replay as for an
// eager step. The host's values that do go into the recording are watched: the places of weights and gradients, which
// gradients were cleared, train() or not, no_sync(), AutoCast around the call. When one has changed, that step runs
// eagerly, and the next one with the same is recorded anew.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

class DistributedDataParallel;

struct CaptureOptions {
  // Steps that run eagerly before one is recorded: real ones, which train. Libraries choose their kernels in them.
  int warm_up = 3;
};

// Made by DistributedDataParallel::capture; movable. Used, and destroyed, by the thread that trains, before the wrapper
// goes.
class CapturedStep {
 public:
  CapturedStep(DistributedDataParallel& ddp, std::function<Tensor()> step, const CaptureOptions& options);
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;
  ~CapturedStep();  // waits for the last replay

  // One training step: eager, recorded and launched, or replayed. Collective, and the same on all ranks. A replay never
  // waits for the device; a recording waits for the collectives under way, and for the other ranks'. Throws
  // InvalidArgument that says why when the step cannot be recorded; the step then has not been made, and calling it
  // directly still works. Throws what a lost peer or a rank that replays another graph causes, as the next collective
  // would.
  Tensor operator()();

  struct Counts {
    std::size_t eager = 0;     // steps run by the host's code, those of the warm-up counted
    std::size_t recorded = 0;  // graphs made; each was launched at once
    std::size_t replayed = 0;  // launched again
  };
  const Counts& counts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
#pragma GCC visibility pop
