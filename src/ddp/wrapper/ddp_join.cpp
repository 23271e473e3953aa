// DistributedDataParallel::join(): ranks without data take part in the passes of the others.
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/base/message_text.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/ddp/wrapper/ddp_impl.h"

namespace lockstep {

void DistributedDataParallel::Impl::join(const std::function<void()>& train, const JoinOptions& options) {
  std::string refusal = refusal_of_join(module(), is_static_, comm_hook_);
  if (refusal.empty() && partner != nullptr) refusal = partner->refusal_of_join(options);
  if (!refusal.empty()) throw InvalidArgument("DistributedDataParallel::join: {}", refusal);
  shares_.begin_join(options);
  pass_error_ = nullptr;
  struct Joining {
    Impl& impl;
    ~Joining() {
      impl.shares_.end_join();
      impl.in_step_->restart();
    }
  } const joining{*this};
  try {
    train();
    follow_others(options.after_step);
  } catch (...) {
    end_join_by(std::current_exception());
    throw;
  }
  if (!shares_.was_uneven()) return;
  if (!options.after_step) replace_by_roots(*group_, parameters_, "final parameters", shares_.first_with_data());
  replace_by_roots(*group_, buffers_, "final buffers", shares_.first_with_data());
}

void DistributedDataParallel::Impl::follow_others(const std::function<void()>& after_step) {
  for (;;) {
    const Shares::Act act = shares_.announce(Shares::Act::kNothing, steps_ + 1);
    if (act == Shares::Act::kNothing) return;
    if (act == Shares::Act::kThrow) rethrow_pass_error();
    if (act == Shares::Act::kBuffers) {
      broadcast_tensors(*group_, buffers_, "buffers", shares_.first_with_data());
      continue;
    }
    try {
      follow_pass();
    } catch (...) {
      if (!pass_error_) throw;
      continue;
    }
    if (after_step) after_step();
  }
}

void DistributedDataParallel::Impl::follow_pass() {
  pass_error_ = nullptr;
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

void DistributedDataParallel::Impl::rethrow_pass_error() const {
  LOCKSTEP_CHECK(pass_error_, "join: rank {} throws an error that this rank did not get", shares_.first_with_data());
  std::rethrow_exception(pass_error_);
}

void DistributedDataParallel::Impl::end_join_by(const std::exception_ptr& error) {
  if (shares_.has_ended_join() || group_->world_size() == 1) return;
  if (!pass_error_ || error != pass_error_) return group_->abort(exception_text(error));
  try {
    shares_.announce(Shares::Act::kThrow, steps_ + 1);
  } catch (const std::exception& other) {  // the other ranks throw it as well
    log::debug("DistributedDataParallel::join: {}", other.what());
  }
}

}  // namespace lockstep
