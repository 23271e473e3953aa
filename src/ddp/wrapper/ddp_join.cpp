// DistributedDataParallel::join(): ranks without data take part in the passes of the others.
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/ddp/wrapper/ddp_impl.h"

namespace lockstep {

void DistributedDataParallel::Impl::join(const std::function<void()>& train, const JoinOptions& options) {
  std::string refusal = refusal_of_join(module(), is_static_, comm_hook_);
  if (refusal.empty() && partner != nullptr) refusal = partner->refusal_of_join(options);
  if (!refusal.empty()) throw InvalidArgument("DistributedDataParallel::join: {}", refusal);
  {
    struct Joining {
      PassWatch& in_step;
      ~Joining() { in_step.restart(); }
    } const joining{*in_step_};
    join_.run(train, options);
  }
  if (!shares_.was_uneven()) return;
  if (!options.after_step) replace_by_roots(*group_, parameters_, "final parameters", shares_.first_with_data());
  replace_by_roots(*group_, buffers_, "final buffers", shares_.first_with_data());
}

void DistributedDataParallel::Impl::follow_pass() {
  if (reducer_->in_pass()) reducer_->abandon_pass();  // an error ended the previous pass
  for (const NamedTensor& parameter : parameters_)
    if (requires_grad(parameter.tensor)) clear_grad(parameter.tensor);
  if (partner != nullptr) partner->begin_followed_pass(steps_ + 1);
  in_step_->begin_pass_in_join(steps_ + 1);
  missing_.follow(reducer_->finish());
  reducer_->undo(missing_.unused());
  ++steps_;
  check_gradients();
  if (partner != nullptr) partner->end_pass();
  rebuild_as_gradients_came();
}

}  // namespace lockstep
