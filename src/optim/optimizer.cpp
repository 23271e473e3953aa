#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/core/process/progress_page.h"
#include "src/optim/clock.h"
#include "src/optim/live_optimizers.h"
#include "src/optim/step_parts.h"
#include "src/optim/team.h"
#include "src/tensor/tensor_map.h"

namespace lockstep::optim {

namespace {

// A parameter with two names (tied weights) is updated once, under the first.
std::vector<NamedTensor> each_once(std::vector<NamedTensor> parameters) {
  std::vector<NamedTensor> once;
  TensorMap<bool> taken;
  for (NamedTensor& parameter : parameters)
    if (!parameter.tensor.defined() || taken.emplace(parameter.tensor, true)) once.push_back(std::move(parameter));
  return once;
}

// Two tensors over the same memory would have two gradients, both incomplete. Sorted by address, overlapping ones are
// adjacent.
void check_memory_is_apart(const std::vector<NamedTensor>& parameters) {
  const auto begin = [](const NamedTensor& parameter) { return parameter.tensor.buffer().data(); };
  std::vector<std::reference_wrapper<const NamedTensor>> by_address(parameters.begin(), parameters.end());
  std::erase_if(by_address, [](const NamedTensor& parameter) { return parameter.tensor.bytes() == 0; });
  std::sort(by_address.begin(), by_address.end(),
            [&](const NamedTensor& a, const NamedTensor& b) { return std::less<>()(begin(a), begin(b)); });
  for (std::size_t i = 1; i < by_address.size(); ++i) {
    const NamedTensor &a = by_address[i - 1], &b = by_address[i];
    if (std::less<>()(begin(b), begin(a) + a.tensor.bytes()))
      throw InvalidArgument(
          "Optimizer: parameters '{}' {} and '{}' {} share memory and would both update it: tie weights by registering "
          "one tensor under both names",
          a.name, a.tensor.shape().text(), b.name, b.tensor.shape().text());
  }
}

}  // namespace

Optimizer::Optimizer(std::vector<NamedTensor> parameters, const Description& description)
    : kind_(description.kind),
      lr_(description.lr),
      weight_decay_(description.weight_decay),
      initial_state_(description.initial_state),
      loss_scaler_(description.loss_scaler),
      state_names_(description.states.begin(), description.states.end()),
      counts_steps_(description.counts_steps),
      shares_updates_(description.shares_updates),
      elementwise_(description.elementwise),
      fewest_dims_(description.fewest_dims) {
  LOCKSTEP_CHECK(state_names_.size() <= std::size(UpdateTensor{}.states), "an update can have at most 3 states");
  if (!is_rate(lr_)) throw InvalidArgument("{}: got lr {}, expected a finite number of 0 or more", kind_, lr_);
  append({.parameters = std::move(parameters)});
  LiveOptimizers::add(*this);
}

Optimizer::Optimizer(const Description& description)
    : kind_(description.kind),
      lr_(description.lr),
      weight_decay_(description.weight_decay),
      initial_state_(description.initial_state),
      loss_scaler_(nullptr),
      counts_steps_(false),
      shares_updates_(false),
      elementwise_(true) {}

Optimizer::~Optimizer() { LiveOptimizers::remove(*this); }

void Optimizer::add_group(ParameterGroup group) { append(std::move(group)); }

void Optimizer::append(ParameterGroup group) {
  if (owner_ != nullptr || !slices_.empty())
    throw InvalidArgument("{}::add_group: {} has taken over the optimizer: add all groups before that", kind_,
                          owner_ != nullptr ? owner_name_ : fmt::format("a {} that was destroyed", owner_name_));
  if (team_ != nullptr)
    throw InvalidArgument(
        "{}::add_group: the optimizer belongs to strategy '{}', which has several: add all groups in the function that "
        "makes it",
        kind_, team_->name());
  if (group.parameters.empty()) throw InvalidArgument("Optimizer: got no parameters; at least one is needed");
  const float decay = group.weight_decay.value_or(weight_decay_);
  if (!is_rate(decay) || !is_rate(group.lr_factor) || !is_rate(lr_ * group.lr_factor))
    throw InvalidArgument("{}: got weight_decay {} and lr_factor {}, expected finite numbers of 0 or more", kind_,
                          decay, group.lr_factor);
  std::vector<NamedTensor> all = parameters_;
  TensorMap<std::string> names;
  for (const NamedTensor& other : parameters_) names.emplace(other.tensor, other.name);
  for (NamedTensor& parameter : each_once(std::move(group.parameters))) {
    if (!parameter.tensor.defined() || !requires_grad(parameter.tensor))
      throw InvalidArgument("Optimizer: parameter '{}' does not require a gradient", parameter.name);
    if (parameter.tensor.dtype() != DType::kFloat32)
      throw InvalidArgument(
          "Optimizer: parameter '{}' is {}, expected float32: keep the weights in float32, and cast() them in "
          "forward()",
          parameter.name, name_of(parameter.tensor.dtype()));
    if (static_cast<int>(parameter.tensor.shape().dims()) < fewest_dims_)
      throw InvalidArgument(
          "{}: parameter '{}' {} has fewer than {} dimensions: give it to another optimizer, such as AdamW", kind_,
          parameter.name, parameter.tensor.shape().text(), fewest_dims_);
    if (const std::string* const other = names.find(parameter.tensor))
      throw InvalidArgument("{}::add_group: the optimizer already has parameter '{}', as '{}'", kind_, parameter.name,
                            *other);
    all.push_back(std::move(parameter));
  }
  check_memory_is_apart(all);
  Device& device = all.front().tensor.device();
  Group added{parameters_.size(), all.size(), group.lr_factor, decay, lr_ * group.lr_factor, {}, {}};
  added.device_lr = Tensor::from<float>(std::array{added.lr}, {1}, device);
  if (counts_steps_) added.clocks = new_clocks(added.end - added.begin, device);
  for (std::size_t i = added.begin; i < added.end; ++i) all_.push_back(i);
  LiveOptimizers::change([&] {
    parameters_ = std::move(all);
    groups_.push_back(std::move(added));
  });
  tensors_.reserve(parameters_.size());
  follow_parameters();
}

void Optimizer::upload_lr(Group& group, float lr) {
  if (lr == group.lr) return;
  Device& device = group.device_lr.device();
  if (device.default_stream().is_capturing())
    throw InvalidArgument(
        "{}::set_lr: a graph would repeat lr {} in every step: set the rate before the step, outside the function that "
        "is "
        "recorded",
        kind_, lr);
  device.upload(group.device_lr.data<float>(), &lr, sizeof lr, device.default_stream());
  group.lr = lr;
}

void Optimizer::set_lr(float lr) {
  if (team_ != nullptr) return team_->set_lr(lr);
  check_lr(lr);
  set_own_lr(lr);
}

void Optimizer::check_lr(float lr) const {
  if (!is_rate(lr)) throw InvalidArgument("{}::set_lr: got lr {}, expected a finite number of 0 or more", kind_, lr);
  for (const Group& group : groups_)
    if (!is_rate(lr * group.lr_factor))
      throw InvalidArgument("{}::set_lr: lr {} times the factor {} of a group is not finite", kind_, lr,
                            group.lr_factor);
}

void Optimizer::set_own_lr(float lr) {
  for (Group& group : groups_) upload_lr(group, lr * group.lr_factor);
  lr_ = lr;
}

void Optimizer::set_lr_factor(std::size_t group, float factor) {
  team_ != nullptr ? team_->set_lr_factor(group, factor) : set_own_lr_factor(group, factor);
}

void Optimizer::set_own_lr_factor(std::size_t group, float factor) {
  if (group >= groups_.size())
    throw InvalidArgument("{}::set_lr_factor: group {} does not exist; there are {}", kind_, group, groups_.size());
  if (!is_rate(factor) || !is_rate(lr_ * factor))
    throw InvalidArgument("{}::set_lr_factor: got factor {}, expected a finite number of 0 or more", kind_, factor);
  upload_lr(groups_[group], lr_ * factor);
  groups_[group].lr_factor = factor;
}

float Optimizer::group_lr(std::size_t group) const {
  if (group >= groups_.size())
    throw InvalidArgument("{}::group_lr: group {} does not exist; there are {}", kind_, group, groups_.size());
  return groups_[group].lr;
}

void Optimizer::zero_grad() {
  ++begun_;
  for (const NamedTensor& parameter : parameters_) clear_grad(parameter.tensor);
}

// Made on first use, because an optimizer that keeps slices makes only those.
void Optimizer::make_states() {
  const std::size_t names = state_names_.size();
  for (std::size_t s = states_.size(); s < parameters_.size() * names; ++s) {
    const Tensor& parameter = parameters_[s / names].tensor;
    const Shape shape =
        slices_.empty() ? parameter.shape() : Shape{static_cast<std::int64_t>(slices_[s / names].count)};
    states_.push_back(Tensor::full(shape, initial_state_, parameter.device()));
  }
}

Optimizer::Slice Optimizer::slice_of(std::size_t parameter) const {
  return slices_.empty() ? Slice{0, static_cast<std::size_t>(parameters_[parameter].tensor.count())}
                         : slices_[parameter];
}

// Keeps the current values of the state.
void Optimizer::keep_slices(std::vector<Slice> slices, int holders) {
  if (holders == 1) return;
  for (std::size_t s = 0; s < states_.size(); ++s) {
    const Slice& slice = slices[s / state_names_.size()];
    const Shape shape{static_cast<std::int64_t>(slice.count)};
    const Buffer part = states_[s].buffer().window(slice.begin * sizeof(float), slice.count * sizeof(float));
    states_[s] = Tensor::wrap(part, shape).clone();
  }
  slices_ = std::move(slices);
  slice_holders_ = holders;
}

// Appends the tensors of `parameters` that are in the group and have a gradient, restricted to the slices of this
// optimizer.
void Optimizer::gather(const Group& group, std::span<const std::size_t> parameters) {
  const std::size_t states = state_names_.size();
  for (const std::size_t i : parameters) {
    const Tensor& parameter = parameters_[i].tensor;
    if (i < group.begin || i >= group.end || !has_grad(parameter)) continue;
    parameter.mark_changed();
    const auto [begin, count] = slice_of(i);
    if (count == 0 && !group.clocks.defined()) continue;  // another holder's: the step count advances here, too
    const float* gradient =
        owner_ == nullptr ? grad(parameter).data<float>() : reinterpret_cast<float*>(grad_buffer(parameter).data());
    UpdateTensor tensor{parameter.data<float>() + begin, gradient + begin, {}, static_cast<std::int64_t>(count)};
    for (std::size_t k = 0; k < states; ++k) tensor.states[k] = states_[i * states + k].data<float>();
    if (!shared_updates_.empty() && count != 0) tensor.shared = &shared_updates_[i];
    tensor.clock = static_cast<std::int64_t>(i - group.begin);
    tensors_.push_back(tensor);
  }
}

void Optimizer::step() {
  if (owner_ != nullptr) return owner_->step();
  if (!slices_.empty())
    throw InvalidArgument(
        "{}::step: this optimizer has only slices of its state, and the {} that made them was destroyed: keep it for "
        "the entire training, or load a checkpoint into a new optimizer",
        kind_, owner_name_);
  if (parameters_.empty()) return;
  check_gradients();
  begin_step();
  find_bad_gradients();
  update_some(all_);
  end_step();
}

void Optimizer::check_gradients() const {
  for (const NamedTensor& parameter : parameters_)
    if (has_grad(parameter.tensor) && step_refusal(parameter.tensor) != nullptr)
      throw InvalidArgument("{}::step: the gradient of '{}' {}", kind_, parameter.name, step_refusal(parameter.tensor));
}

void Optimizer::begin_step(bool begins_scaling) {
  ++steps_;
  make_states();
  follow_parameters();
  tensors_.clear();  // keeps its capacity, so spans stay valid
  if (begins_scaling && loss_scaler_ != nullptr) loss_scaler_->begin_step(this, parameters_.front().tensor.device());
}

// Returns the state of loss scaling, or null, with the result for these gradients.
LossScaleState* Optimizer::find_bad_gradients() {
  if (loss_scaler_ == nullptr) return nullptr;
  Device& device = parameters_.front().tensor.device();
  LossScaleState* const scale = loss_scaler_->data_on(device);
  for (const Group& group : groups_) gather(group, all_);
  device.kernels().find_bad_gradients(tensors_, scale, device.default_stream());
  tensors_.clear();
  return scale;
}

// Updates each parameter once per step.
void Optimizer::update_some(std::span<const std::size_t> parameters) {
  Device& device = parameters_.front().tensor.device();
  const LossScaleState* const scale = loss_scaler_ == nullptr ? nullptr : loss_scaler_->data_on(device);
  for (const Group& group : groups_) {
    const std::size_t first = tensors_.size();
    gather(group, parameters);
    const std::span<const UpdateTensor> tensors = std::span(tensors_).subspan(first);
    if (tensors.empty()) continue;
    auto* const clocks = group.clocks.defined() ? clock_in(group.clocks) : nullptr;
    update(tensors, {group.device_lr.data<float>(), group.weight_decay, scale, clocks}, device.kernels(),
           device.default_stream());
  }
}

void Optimizer::end_step() {
  note_optimizer_step();
  if (loss_scaler_ != nullptr) loss_scaler_->end_step(this, parameters_.front().tensor.device());
}

// When the module has moved to another device, moves state and rates too.
void Optimizer::follow_parameters() {
  Device& device = parameters_.front().tensor.device();
  for (const NamedTensor& parameter : parameters_)
    if (&parameter.tensor.device() != &device)
      throw InvalidArgument(
          "{}: parameter '{}' is on {}, but the first one is on {}: move the entire module with .to(device)", kind_,
          parameter.name, parameter.tensor.device().name(), device.name());
  for (const Tensor& state : states_) move_to(device, state);
  for (const Group& group : groups_) {
    move_to(device, group.device_lr);
    move_to(device, group.clocks);
  }
}

std::vector<NamedTensor> Optimizer::state() {
  std::vector<NamedTensor> named;
  for (StatePart& part : state_parts())
    if (!part.is_slice || part.values.count() != 0) named.push_back({std::move(part.name), std::move(part.values)});
  return named;
}

std::vector<StatePart> Optimizer::state_parts() {
  return team_ != nullptr ? team_->state_parts(*this) : own_state_parts(true);
}

std::vector<StatePart> Optimizer::own_state_parts(bool with_scaler) {
  make_states();
  std::vector<StatePart> parts;
  const auto add_whole = [&](std::string name, const Tensor& tensor) {
    parts.push_back({std::move(name), tensor, tensor.shape()});
  };
  for (std::size_t s = 0; s < states_.size(); ++s) {
    const std::size_t i = s / state_names_.size();
    parts.push_back({parameters_[i].name + "." + state_names_[s % state_names_.size()], states_[s],
                     parameters_[i].tensor.shape(), static_cast<std::int64_t>(slice_of(i).begin), !slices_.empty()});
  }
  for (std::size_t i = 0; i < groups_.size(); ++i)
    if (groups_[i].clocks.defined()) add_whole(fmt::format("group{}.clock", i), groups_[i].clocks);
  if (with_scaler && loss_scaler_ != nullptr)
    add_whole("loss_scaler.state", loss_scaler_->state_on(parameters_.front().tensor.device()));
  return parts;
}

}  // namespace lockstep::optim
