#include "lockstep/autograd/variable.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "src/autograd/engine/variable_state.h"

namespace lockstep {

namespace {

thread_local bool no_grad_active = false;

// The state of a leaf that requires a gradient; `caller` names the function for the message.
VariableState& leaf_of(const Tensor& leaf, const char* caller) {
  VariableState* state = variable_of(leaf);
  if (state != nullptr && !state->wants_grad && !state->name.empty())
    throw InvalidArgument(
        "{}: {} requires no gradient: freeze parameters before the module is wrapped and the optimizer is made", caller,
        describe(leaf));
  if (state == nullptr || !state->wants_grad)
    throw InvalidArgument("{}: the tensor of shape {} is not a leaf that requires a gradient", caller,
                          leaf.shape().text());
  return *state;
}

}  // namespace

static HookHandle add_hook(VariableState& state, std::vector<std::shared_ptr<HookEntry>>& hooks, GradHook hook) {
  if (!hook) throw InvalidArgument("register_grad_hook: the hook is empty");
  auto entry = std::make_shared<HookEntry>(HookEntry{std::move(hook)});
  hooks.push_back(entry);
  return HookHandle([weak = state.weak_from_this(), entry] {
    if (const auto alive = weak.lock()) alive->remove(entry);
  });
}

VariableState* variable_of(const Tensor& tensor) { return static_cast<VariableState*>(tensor.autograd_meta()); }

VariableState& ensure_variable(const Tensor& tensor) {
  if (tensor.autograd_meta() == nullptr) tensor.set_autograd_meta(std::make_shared<VariableState>());
  return *variable_of(tensor);
}

void VariableState::backward(const Tensor& root, const BackwardOptions& options) { lockstep::backward(root, options); }

void VariableState::fire_hooks(const Tensor& leaf) {
  struct Firing {
    VariableState& state;
    ~Firing() {
      state.firing_ = false;
      for (auto* all : {&state.hooks, &state.last_hooks})
        std::erase_if(*all, [](const auto& entry) { return entry->removed; });
    }
  };
  firing_ = true;
  const Firing firing{*this};
  fire(hooks, leaf);
  fire(last_hooks, leaf);
}

void VariableState::fire(const std::vector<std::shared_ptr<HookEntry>>& all, const Tensor& leaf) const {
  const std::size_t count = all.size();  // a hook that is added now takes effect in the next pass
  for (std::size_t i = 0; i < count; ++i) {
    const std::shared_ptr<HookEntry> entry = all[i];
    if (!entry->removed) entry->hook(leaf);
  }
}

void VariableState::remove(const std::shared_ptr<HookEntry>& entry) {
  entry->removed = true;
  if (firing_) return;
  std::erase(hooks, entry);
  std::erase(last_hooks, entry);
}

void require_grad(const Tensor& leaf, bool wanted) {
  if (leaf.dtype() != DType::kFloat32 && leaf.dtype() != DType::kFloat16 && leaf.dtype() != DType::kBFloat16)
    throw InvalidArgument(
        "require_grad: the tensor is {}, but only float32, float16 and bfloat16 tensors have gradients",
        name_of(leaf.dtype()));
  VariableState& state = ensure_variable(leaf);
  if (state.node)
    throw InvalidArgument("require_grad: the tensor of shape {} is a result, not a leaf", leaf.shape().text());
  state.wants_grad = wanted;
}

bool requires_grad(const Tensor& tensor) {
  const VariableState* state = variable_of(tensor);
  return state != nullptr && (state->wants_grad || state->node != nullptr);
}

void mark_registered(const Tensor& tensor) { ensure_variable(tensor).is_registered = true; }

void set_name(const Tensor& leaf, const std::string& name) { ensure_variable(leaf).name = name; }

std::string describe(const Tensor& tensor) {
  const VariableState* state = variable_of(tensor);
  if (state == nullptr || state->name.empty()) return fmt::format("a tensor of shape {}", tensor.shape().text());
  return fmt::format("parameter '{}' of shape {}", state->name, tensor.shape().text());
}

std::string name_argument(std::string_view what, const Tensor& tensor) {
  const VariableState* state = tensor.defined() ? variable_of(tensor) : nullptr;
  return state == nullptr || state->name.empty() ? std::string(what) : fmt::format("{} '{}'", what, state->name);
}

Tensor grad(const Tensor& leaf) {
  const VariableState& state = leaf_of(leaf, "grad");
  if (state.withheld != nullptr)
    throw InvalidArgument("grad: the gradient of {} is withheld: {}", describe(leaf), state.withheld);
  return state.grad;
}
bool has_grad(const Tensor& leaf) { return leaf_of(leaf, "has_grad").grad_written; }
void clear_grad(const Tensor& leaf) {
  VariableState& state = leaf_of(leaf, "clear_grad");
  state.grad_written = false;
  state.withheld = state.step_refusal = nullptr;
}

void withhold_grad(const Tensor& leaf, const char* reason) { leaf_of(leaf, "withhold_grad").withheld = reason; }
bool is_grad_withheld(const Tensor& leaf) { return leaf_of(leaf, "is_grad_withheld").withheld != nullptr; }
void refuse_step(const Tensor& leaf, const char* reason) { leaf_of(leaf, "refuse_step").step_refusal = reason; }
const char* step_refusal(const Tensor& leaf) { return leaf_of(leaf, "step_refusal").step_refusal; }
Buffer grad_buffer(const Tensor& leaf) {
  const Tensor& gradient = leaf_of(leaf, "grad_buffer").grad;
  return gradient.defined() ? gradient.buffer() : Buffer();
}

void mark_grad_written(const Tensor& leaf) {
  VariableState& state = leaf_of(leaf, "mark_grad_written");
  if (!state.grad.defined())
    throw InvalidArgument("mark_grad_written: the leaf of shape {} has no gradient memory", leaf.shape().text());
  state.grad_written = true;
  state.step_refusal = nullptr;
}

void bind_grad(const Tensor& leaf, Buffer slot) {
  VariableState& state = leaf_of(leaf, "bind_grad");
  const Tensor bound = Tensor::wrap(slot, leaf.shape(), leaf.dtype());
  if (!state.grad.defined()) {
    state.grad = bound;
    return;
  }
  if (state.grad_written && bound.buffer().data() != state.grad.buffer().data()) bound.copy_from(state.grad);
  state.grad.rebind(std::move(slot));  // handles that users hold follow to the slot
}

HookHandle register_grad_hook(const Tensor& leaf, GradHook hook) {
  VariableState& state = leaf_of(leaf, "register_grad_hook");
  return add_hook(state, state.hooks, std::move(hook));
}

HookHandle register_last_grad_hook(const Tensor& leaf, GradHook hook) {
  VariableState& state = leaf_of(leaf, "register_last_grad_hook");
  return add_hook(state, state.last_hooks, std::move(hook));
}

Tensor detach(const Tensor& tensor) { return tensor.reshaped(tensor.shape()); }

EnableGrad::EnableGrad() : before_(std::exchange(no_grad_active, false)) {}
EnableGrad::~EnableGrad() { no_grad_active = before_; }

NoGrad::NoGrad() : before_(std::exchange(no_grad_active, true)) {}
NoGrad::~NoGrad() { no_grad_active = before_; }
bool NoGrad::active() { return no_grad_active; }

}  // namespace lockstep
