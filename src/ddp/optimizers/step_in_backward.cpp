#include "lockstep/ddp/step_in_backward.h"

#include <string>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/ddp/checks/pass_partner.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/optim/step_parts.h"

namespace lockstep {

namespace {

constexpr const char* kUsed =
    "StepInBackward has already used it for the step, so a change would be too late. To clip or change gradients, call "
    "step() after backward() "
    "instead";

}  // namespace

class StepInBackward::Impl : public PassPartner, public optim::StepOwner {
 public:
  Impl(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
      : ddp_(ddp), optimizer_(optimizer), parts_(optimizer), parameters_(ddp.parameters()) {
    refuse_on_all_ranks(ddp.group(), name(), refusal());
    check_same_on_all_ranks(ddp.group(), name(), {"optimizer " + optimizer.kind()}, "have different optimizers");
    indices_ = indices_in(optimizer, ddp);
    PassAccess::reducer(ddp).set_on_reduced([this](std::size_t bucket) { update(bucket); });
    PassAccess::set_partner(ddp, this);
    parts_.set_owner(*this);
  }

  ~Impl() override {
    Reducer& reducer = PassAccess::reducer(ddp_);
    reducer.abandon_pass();
    reducer.set_on_reduced({});
    PassAccess::set_partner(ddp_, nullptr);
  }

  const char* name() const override { return "StepInBackward"; }

  void step() override {
    throw InvalidArgument("{}::step: StepInBackward makes each step during backward: do not call step()",
                          optimizer_.kind());
  }

  const char* reason_against_capture() const override {
    return "StepInBackward: the host checks for complete averages, but a replayed graph runs no host code: "
           "call the step directly";
  }

  void begin_pass(std::uint64_t) override { parts_.begin(); }

  // A rank without data has zeros as its own gradients of all parameters.
  void begin_followed_pass(std::uint64_t step) override {
    for (const auto& [name, tensor] : parameters_)
      if (requires_grad(tensor)) mark_grad_written(tensor);
    begin_pass(step);
  }

  void end_pass() override {
    parts_.end();
    for (const auto& [name, tensor] : parameters_)
      if (requires_grad(tensor) && has_grad(tensor)) withhold_grad(tensor, kUsed);
  }

 private:
  std::string refusal() {
    if (std::string reason = refusal_of_pair(ddp_, optimizer_); !reason.empty()) return reason;
    if (PassAccess::may_leave_gradients(ddp_))
      return "the wrapper has find_unused_parameters or static_graph: which parameters have no gradient, and must "
             "not change, is known only at the end of backward";
    if (PassAccess::check(ddp_).is_on())
      return "the wrapper has max_grad_norm or on_nonfinite_gradient: their result is known when all gradients are "
             "ready, after the first "
             "updates";
    if (parts_.scales_loss())
      return fmt::format(
          "{} has a loss_scaler, which skips a step for one bad gradient, so all must be ready before the first update",
          optimizer_.kind());
    return "";
  }

  void update(std::size_t bucket) {
    bucket_parameters_.clear();
    for (const Slot& slot : ddp_.reducer().buckets()[bucket].slots)
      if (requires_grad(parameters_[slot.gradient].tensor)) bucket_parameters_.push_back(indices_[slot.gradient]);
    parts_.update(bucket_parameters_);
  }

  DistributedDataParallel& ddp_;
  optim::Optimizer& optimizer_;
  optim::StepParts parts_;
  const std::vector<NamedTensor> parameters_;  // by the reducer's index
  std::vector<std::size_t> indices_;           // indices into the optimizer's parameters
  std::vector<std::size_t> bucket_parameters_;
};

StepInBackward::StepInBackward(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
    : impl_(std::make_unique<Impl>(ddp, optimizer)) {}
StepInBackward::~StepInBackward() = default;

}  // namespace lockstep
