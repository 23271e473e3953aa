// Forward and backward passes of DistributedDataParallel.
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/comm/agreement.h"
#include "src/autograd/engine/variable_state.h"
#include "src/ddp/checks/mistakes.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/ddp_impl.h"

namespace lockstep {

namespace {

constexpr std::size_t kMostInputs = 64;

}  // namespace

nn::Module& DistributedDataParallel::Impl::begin_forward(std::span<const Tensor> inputs) {
  join_.forget_error();
  nn::Module& wrapped = module();
  std::string change = watch_.change(wrapped);
  if (change.empty()) change = moved_gradient(parameters_, slots_);
  if (change.empty() && group_->world_size() > 1 && !NoGrad::active()) change = watch_.unfrozen();
  if (!change.empty())
    abort_and_throw(
        *group_,
        fmt::format(
            "DistributedDataParallel: rank {}: the module changed after it was wrapped: {}: first build it, freeze "
            "and unfreeze its parameters and move it with .to(device), then wrap it",
            group_->rank(), change));
  frozen_named_ = frozen_named_ || warn_of_frozen(group_->rank(), parameters_);
  if (sync_buffers_ && wrapped.is_training() && synchronize && !buffers_.empty()) {
    if (shares_.is_joining()) shares_.announce(Shares::Act::kBuffers, steps_ + 1);
    broadcast_tensors(*group_, buffers_, "buffers", shares_.is_joining() ? shares_.first_with_data() : 0);
  }
  for (const Tensor& input : inputs) note_input(input);
  return wrapped;
}

void DistributedDataParallel::Impl::finish_at_end_of(const Tensor& output) {
  register_backward_end_hook(output, [this, alive = alive_] { finish_pass(*alive); });
}

void DistributedDataParallel::Impl::note_input(const Tensor& x) {
  if (unregistered_named_ || !synchronize || NoGrad::active() || !requires_grad(x) || node_of(x)) return;
  if (inputs_.size() == kMostInputs) inputs_.pop_front();
  inputs_.push_back(x);
}

void DistributedDataParallel::Impl::gradient_ready(std::size_t i) {
  if (!synchronize) return keep_local(i);
  if (std::exchange(begun_pass_, backward_pass()) != backward_pass()) {
    begin_pass();
    queue_callback([this, alive = alive_] { finish_pass(*alive); });
  }
  reducer_->mark_ready(i);
}

void DistributedDataParallel::Impl::keep_local(std::size_t i) {
  if (std::exchange(local_pass_, backward_pass()) != backward_pass()) in_step_->note_local_pass();
  if (group_->world_size() > 1 && !in_step_->weights_may_differ()) local_.keep(i);
}

void DistributedDataParallel::Impl::begin_pass() {
  join_.forget_error();
  if (reducer_->in_pass()) reducer_->abandon_pass();  // an exception ended the previous pass
  shares_.begin_pass(steps_ + 1);
  if (partner != nullptr) partner->begin_pass(steps_ + 1);
  shares_.is_joining() ? in_step_->begin_pass_in_join(steps_ + 1) : in_step_->begin_pass(steps_ + 1);
}

void DistributedDataParallel::Impl::finish_pass(bool alive) {
  if (!alive || !synchronize || std::exchange(finished_pass_, backward_pass()) == backward_pass()) return;
  if (begun_pass_ != finished_pass_) begin_pass();
  // Marks gradients that an earlier pass under no_sync() computed and that this pass did not reach.
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!reducer_->is_ready(i) && wants_and_has_grad(parameters_[i].tensor)) reducer_->mark_ready(i);
  const std::vector<std::size_t> missing = reducer_->finish();
  local_.release();
  missing_.settle(missing, ++steps_);
  reducer_->undo(missing_.unused());
  check_gradients();
  if (partner != nullptr) partner->end_pass();
  rebuild_as_gradients_came();
  if (!std::exchange(unregistered_named_, true))
    warn_of_unregistered_leaves(group_->rank(), trained_, std::exchange(inputs_, {}));
}

void DistributedDataParallel::Impl::rebuild(const std::vector<std::size_t>& order) {
  reducer_->rebuild(order, [this](std::size_t i, const Buffer& slot) {
    const bool is_there = gradients_[i].buffer().data() == std::exchange(slots_[i], slot.data());
    if (is_there)
      gradients_[i].rebind(memory_on(gradients_[i].device(), slot));  // else the next forward reports that it was moved
  });
  check_.follow(*reducer_);
  has_rebuilt_ = true;
}

void DistributedDataParallel::Impl::rebuild_as_gradients_came() {
  if (!will_rebuild()) return;
  const std::span<const std::size_t> arrivals = reducer_->arrival_order();
  std::vector<std::int64_t> order(arrivals.begin(), arrivals.end());
  if (group_->world_size() > 1)
    group_->broadcast(std::span(order), shares_.is_joining() ? shares_.first_with_data() : 0,
                      {.purpose = {"bucket order"}});
  rebuild(std::vector<std::size_t>(order.begin(), order.end()));
}

float DistributedDataParallel::Impl::factor() {
  return join_.noting_error([this] { return shares_.factor(); });
}

void DistributedDataParallel::Impl::check_gradients() {
  join_.noting_error([this] { check_.finish(steps_); });
}

}  // namespace lockstep
