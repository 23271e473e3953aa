// Forward and backward passes of TorchDdpBase.
#include <ATen/DeviceGuard.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/torch/torch_ddp_impl.h"

namespace lockstep {

namespace {

using torch::autograd::variable_list;

// Runs after a parameter's AccumulateGrad.
class AfterAccumulation : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    call_();
    return outputs;
  }

 private:
  const std::function<void()> call_;
};

constexpr int kNoBackward = -1;  // of get_current_graph_task_id()

}  // namespace

// The reducer is first: its pending reductions write into the slots.
TorchDdpBase::Impl::~Impl() {
  for (const auto& [node, key] : hooks_) node->del_post_hook(key);
  reducer_.reset();
}

void TorchDdpBase::Impl::install_hooks() {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    put_into_slot(i);
    auto node = torch::autograd::impl::grad_accumulator(trained_[i].second);
    const std::uintptr_t key = node->add_post_hook(std::make_unique<AfterAccumulation>([weak = weak_from_this(), i] {
      if (const auto impl = weak.lock()) impl->gradient_ready(i);
    }));
    hooks_.emplace_back(std::move(node), key);
  }
}

at::Tensor TorchDdpBase::Impl::slot_view(std::size_t parameter, const Buffer& slot) const {
  const at::Tensor& tensor = trained_[parameter].second;
  // The tensor keeps the bucket's memory alive. The device may use the memory again when torch's work on it is done.
  const auto release = [slot, streams = streams_](void*) mutable { streams->release(std::move(slot)); };
  return at::from_blob(slot.data(), tensor.sizes(), tensor.strides(), /*storage_offset=*/0, release, tensor.options(),
                       tensor.device());
}

bool TorchDdpBase::Impl::is_in_slot(std::size_t parameter) const {
  const at::Tensor &grad = grad_of(parameter), &slot = slots_[parameter];
  return grad.defined() &&
         (grad.is_same(slot) || (grad.layout() == at::kStrided && grad.const_data_ptr() == slot.const_data_ptr() &&
                                 grad.strides() == slot.strides()));
}

// A gradient that was dropped (zero_grad()) or replaced between passes is new memory.
void TorchDdpBase::Impl::put_into_slot(std::size_t parameter) {
  at::Tensor& grad = grad_of(parameter);
  if (!grad.defined() || is_in_slot(parameter)) return;
  if (grad.layout() != at::kStrided)
    abort_and_throw(*group_, fmt::format("TorchDdp: rank {}: the gradient of '{}' is sparse, and only dense gradients "
                                         "are reduced: make the layer with sparse(false)",
                                         group_->rank(), name(parameter)));
  if (grad.scalar_type() != slots_[parameter].scalar_type() || grad.sizes() != slots_[parameter].sizes())
    abort_and_throw(*group_,
                    fmt::format("TorchDdp: rank {}: the gradient of '{}' is {}, and the parameter is {}: do "
                                "not replace it by a tensor of another type or shape",
                                group_->rank(), name(parameter), described(grad), described(slots_[parameter])));
  const at::NoGradGuard no_grad;
  slots_[parameter].copy_(grad);
  grad = slots_[parameter];
}

void TorchDdpBase::Impl::begin_forward() {
  check_process();
  join_.forget_error();
  if (is_open_ && torch::autograd::get_current_graph_task_id() == kNoBackward) {  // an exception ended backward
    is_open_ = false;
    reducer_->abandon_pass();
  }
  check_module();
  refuse_capture();
  const at::DeviceGuard guard(trained_.front().second.device());  // the group's calls make the GPU the current one
  if (!options_.forward_sync_buffers || !module_->is_training() || !synchronize || buffers_.empty()) return;
  if (shares_.is_joining()) shares_.announce(Shares::Act::kBuffers, steps_ + 1);
  broadcast_values(*group_, *streams_, buffers_, "buffers", shares_.is_joining() ? shares_.first_with_data() : 0);
}

void TorchDdpBase::Impl::reduce_at_end_of(const torch::Tensor& output) {
  if (!at::GradMode::is_enabled() || !output.defined() || !output.requires_grad() || output.is_leaf()) return;
  output.register_hook([weak = weak_from_this()](const at::Tensor&) {
    if (const auto impl = weak.lock(); impl && impl->synchronize && impl->needs_accumulation()) impl->open_pass();
  });
}

void TorchDdpBase::Impl::refuse_capture() {
  if (!streams_->is_capturing()) return;
  abort_and_throw(*group_,
                  fmt::format("TorchDdp: rank {}: torch is capturing a CUDA graph, of which forward and backward of a "
                              "wrapped module cannot be part: call ddp(...) and backward() outside of the graph",
                              group_->rank()));
}

bool TorchDdpBase::Impl::needs_accumulation() const {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || chosen->empty()) return true;
  for (const auto& [node, key] : hooks_)
    if (const auto found = chosen->find(node.get()); found != chosen->end() && found->second.needed_) return true;
  return false;
}

void TorchDdpBase::Impl::gradient_ready(std::size_t parameter) {
  touched_[parameter] = true;
  if (!synchronize) return;
  open_pass();
  if (grad_of(parameter).defined()) hand_over(parameter);
}

void TorchDdpBase::Impl::hand_over(std::size_t parameter) {
  put_into_slot(parameter);
  streams_->ours_after_torch();
  reducer_->mark_ready(parameter);
}

// Belongs to autograd's engine, which destroys it without a call if an exception ended backward.
class TorchDdpBase::Impl::PassEnd {
 public:
  PassEnd(std::weak_ptr<Impl> impl, std::uint64_t opened) : impl_(std::move(impl)), opened_(opened) {}
  ~PassEnd() {
    if (const auto impl = impl_.lock()) impl->drop_pass(opened_);
  }
  PassEnd(const PassEnd&) = delete;
  PassEnd& operator=(const PassEnd&) = delete;
  void run() const {
    if (const auto impl = impl_.lock()) impl->finish_pass();
  }

 private:
  const std::weak_ptr<Impl> impl_;
  const std::uint64_t opened_;
};

void TorchDdpBase::Impl::open_pass() {
  check_process();
  if (std::exchange(is_open_, true)) return;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end = std::make_shared<PassEnd>(weak_from_this(), ++opened_)] { end->run(); });
  join_.forget_error();
  refuse_capture();
  if (reducer_->in_pass()) reducer_->abandon_pass();
  bad_.assign(bad_.size(), 0);
  shares_.begin_pass(steps_ + 1);
  compare_positions();
}

void TorchDdpBase::Impl::drop_pass(std::uint64_t opened) {
  if (opened != opened_ || !std::exchange(is_open_, false)) return;
  reducer_->abandon_pass();
}

// The next call of the group compares it.
void TorchDdpBase::Impl::compare_positions() {
  if (group_->world_size() == 1) return;
  group_->compare_with_next_call({.wrapper = wrapper_,
                                  .pass = static_cast<std::uint32_t>(steps_ + 1),
                                  .trained = static_cast<std::uint32_t>(trained_.size())});
}

// False for a gradient that zero_grad() dropped or filled with zeros, and no backward reached since then.
bool TorchDdpBase::Impl::has_values(std::size_t parameter) const {
  const at::Tensor& grad = grad_of(parameter);
  return grad.defined() && (touched_[parameter] || grad.layout() != at::kStrided || grad.any().item<bool>());
}

void TorchDdpBase::Impl::finish_pass() {
  if (!std::exchange(is_open_, false)) return;
  // Gradients of an earlier backward, under no_sync() or averaged, that this one did not reach.
  for (std::size_t i = 0; i < trained_.size(); ++i)
    if (!reducer_->is_ready(i) && has_values(i)) hand_over(i);
  streams_->ours_after_torch();  // before finish() writes zeros into the other slots
  missing_.settle(reducer_->finish(), ++steps_);
  end_pass();
}

// On a rank without data.
void TorchDdpBase::Impl::follow_pass() {
  if (reducer_->in_pass()) reducer_->abandon_pass();
  streams_->ours_after_torch();
  compare_positions();
  missing_.follow(reducer_->finish());
  ++steps_;
  end_pass();
}

void TorchDdpBase::Impl::end_pass() {
  touched_.assign(touched_.size(), false);
  for (const std::size_t unused : missing_.unused()) grad_of(unused) = at::Tensor();
  reducer_->undo(missing_.unused());
  streams_->torch_after_ours();
  check_gradients();
  rebuild_as_gradients_came();
}

void TorchDdpBase::Impl::rebuild_as_gradients_came() {
  if (missing_.asks_each_pass() || std::exchange(has_rebuilt_, true)) return;
  const std::span<const std::size_t> arrivals = reducer_->arrival_order();
  std::vector<std::int64_t> order(arrivals.begin(), arrivals.end());
  if (group_->world_size() > 1)
    group_->broadcast(std::span(order), shares_.is_joining() ? shares_.first_with_data() : 0,
                      {.purpose = {"bucket order"}});
  reducer_->rebuild(std::vector<std::size_t>(order.begin(), order.end()), [this](std::size_t i, const Buffer& slot) {
    at::Tensor view = slot_view(i, slot);
    if (is_in_slot(i)) grad_of(i) = view;
    slots_[i] = std::move(view);
  });
  streams_->torch_after_ours();  // after the values have moved
}

bool TorchDdpBase::Impl::is_finite(std::size_t bucket) const {
  const BucketLayout& layout = reducer_->buckets()[bucket];
  const at::NoGradGuard no_grad;
  const at::TensorOptions like = slots_[layout.slots.front().gradient].options();
  const at::Tensor values =
      at::for_blob(reducer_->memory(bucket).data(), {static_cast<std::int64_t>(layout.bytes / size_of(layout.dtype))})
          .options(like)
          .target_device(like.device())
          .make_tensor();
  return std::isfinite(at::linalg_vector_norm(values, std::numeric_limits<double>::infinity()).item<double>());
}

void TorchDdpBase::Impl::note_nonfinite(std::size_t bucket, unsigned bit) {
  streams_->torch_after_ours();
  if (is_finite(bucket)) return;
  const at::NoGradGuard no_grad;
  for (const Slot& slot : reducer_->buckets()[bucket].slots) {
    const at::Tensor& values = slots_[slot.gradient];
    if (values.numel() > 0 &&
        !std::isfinite(at::linalg_vector_norm(values, std::numeric_limits<double>::infinity()).item<double>()))
      bad_[slot.gradient] = static_cast<std::uint8_t>(bad_[slot.gradient] | bit);
  }
}

void TorchDdpBase::Impl::check_gradients() {
  if (!nonfinite_.can_stop()) return;
  join_.noting_error([this] {
    std::vector<std::uint8_t> bad = std::exchange(bad_, std::vector<std::uint8_t>(bad_.size()));
    for (const std::size_t unused : missing_.unused()) bad[unused] = 0;  // a comm hook may change its zeros
    bool is_any = false;
    for (const std::uint8_t bits : bad) is_any = is_any || (bits & kAverageIsBad) != 0;
    if (!nonfinite_.is_any(is_any)) return;
    std::string report = nonfinite_.report(bad, steps_);
    for (std::size_t i = 0; i < trained_.size(); ++i) grad_of(i) = at::Tensor();
    nonfinite_.stop(std::move(report), /*lowers_scale=*/false);
  });
}

}  // namespace lockstep
