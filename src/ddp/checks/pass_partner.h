// An optimizer that takes part in a wrapper's passes: ZeroRedundancyOptimizer or StepInBackward. A wrapper has one at a
// time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/optimizer.h"
#include "src/ddp/checks/gradient_check.h"

namespace lockstep {

class PassWatch;

class PassPartner {
 public:
  virtual ~PassPartner() = default;
  // Returns "", or why the two cannot be combined. JoinOptions are the same on all ranks.
  virtual std::string refusal_of_join(const JoinOptions&) const { return ""; }
  virtual const char* reason_against_capture() const = 0;
  // Called when a reduced pass begins. `step` is its number, the same on all ranks. The second function is for a rank
  // without data that follows the others' pass.
  virtual void begin_pass(std::uint64_t step) = 0;
  virtual void begin_followed_pass(std::uint64_t step) { begin_pass(step); }
  // Called when all buckets are reduced and it is known which parameters have a gradient.
  virtual void end_pass() = 0;
};

// Access to a wrapper's internals for partners and CapturedStep.
struct PassAccess {
  static Reducer& reducer(DistributedDataParallel& ddp);
  static PassWatch& in_step(DistributedDataParallel& ddp);
  static PassPartner* partner(const DistributedDataParallel& ddp);
  static void set_partner(DistributedDataParallel& ddp, PassPartner* partner);  // null: no partner
  static GradientCheck& check(DistributedDataParallel& ddp);            // of max_grad_norm, on_nonfinite_gradient
  static bool may_leave_gradients(const DistributedDataParallel& ddp);  // find_unused_parameters, static_graph
};

// Returns memory of a bucket, or similar memory, as memory of a parameter's device. The CPU's logical devices share
// memory, and a bucket may hold gradients of several of them if the model's parts are on several.
Buffer memory_on(Device& device, const Buffer& memory);

// Returns "", or why `optimizer` cannot work in the passes of `ddp`: it must have exactly the wrapper's parameters, or
// with `takes_some` any of them, and neither may already have a partner or owner.
std::string refusal_of_pair(const DistributedDataParallel& ddp, optim::Optimizer& optimizer, bool takes_some = false);
// Maps indices into ddp.parameters() to indices into optimizer.parameters(), or kNotInOptimizer.
inline constexpr std::size_t kNotInOptimizer = SIZE_MAX;
std::vector<std::size_t> indices_in(const optim::Optimizer& optimizer, const DistributedDataParallel& ddp);

}  // namespace lockstep
