// An optimizer that takes part in a wrapper's passes: ZeroRedundancyOptimizer, StepInBackward. A wrapper has one at a
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
  // "", or why the two do not go together; JoinOptions are the same on all ranks.
  virtual std::string refusal_of_join(const JoinOptions&) const { return ""; }
  virtual const char* reason_against_capture() const = 0;
  // A pass that is reduced begins. `step`: its number, the same on all ranks. The second: one of the others' that a
  // rank without data follows.
  virtual void begin_pass(std::uint64_t step) = 0;
  virtual void begin_followed_pass(std::uint64_t step) { begin_pass(step); }
  // All buckets are reduced, and it is settled which parameters have a gradient.
  virtual void end_pass() = 0;
};

// What partners, and CapturedStep, see of a wrapper.
struct PassAccess {
  static Reducer& reducer(DistributedDataParallel& ddp);
  static PassWatch& in_step(DistributedDataParallel& ddp);
  static PassPartner* partner(const DistributedDataParallel& ddp);
  static void set_partner(DistributedDataParallel& ddp, PassPartner* partner);  // null: none
  static GradientCheck& check(DistributedDataParallel& ddp);            // of max_grad_norm, on_nonfinite_gradient
  static bool may_leave_gradients(const DistributedDataParallel& ddp);  // find_unused_parameters, static_graph
};

// Memory of a bucket, or like one, as memory of a parameter's device: the CPU's logical devices share theirs, and a
// bucket there may hold gradients of each, as a model has whose parts lie on several.
Buffer memory_on(Device& device, const Buffer& memory);

// "", or why `optimizer` cannot work within passes of `ddp`: it must hold the wrapper's parameters, all of them and no
// others, and neither may have a partner or owner.
std::string refusal_of_pair(const DistributedDataParallel& ddp, optim::Optimizer& optimizer);
// By index into ddp.parameters(), the index into optimizer.parameters().
std::vector<std::size_t> indices_in(const optim::Optimizer& optimizer, const DistributedDataParallel& ddp);

}  // namespace lockstep
