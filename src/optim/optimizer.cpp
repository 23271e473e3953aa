#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/optim/clock.h"

namespace lockstep::optim {

namespace {

// A parameter under two names (tied weights) is updated once, under the first.
std::vector<NamedTensor> each_once(std::vector<NamedTensor> parameters) {
  std::vector<NamedTensor> once;
  for (NamedTensor& parameter : parameters) {
    const auto is_this = [&](const NamedTensor& other) { return other.tensor.is_same(parameter.tensor); };
    if (std::none_of(once.begin(), once.end(), is_this)) once.push_back(std::move(parameter));
  }
  return once;
}

// Two tensors over the same memory have two gradients: neither is the memory's. Sorted by address, what overlaps is adjacent.
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
          "Optimizer: parameters '{}' {} and '{}' {} share memory and would both update it: tie weights by registering one tensor under "
          "both names",
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
      counts_steps_(description.counts_steps) {
  LOCKSTEP_CHECK(state_names_.size() <= std::size(UpdateTensor{}.states), "an update has at most 3 states");
  if (!is_rate(lr_)) throw InvalidArgument("{}: lr {} must be a finite number and not negative", kind_, lr_);
  append({.parameters = std::move(parameters)});
}

void Optimizer::add_group(ParameterGroup group) { append(std::move(group)); }

void Optimizer::append(ParameterGroup group) {
  if (group.parameters.empty()) throw InvalidArgument("Optimizer: there is no parameter to optimize");
  const float decay = group.weight_decay.value_or(weight_decay_);
  if (!is_rate(decay) || !is_rate(group.lr_factor) || !is_rate(lr_ * group.lr_factor))
    throw InvalidArgument("{}: weight_decay {} and lr_factor {} must be finite numbers and not negative", kind_, decay, group.lr_factor);
  std::vector<NamedTensor> all = parameters_;
  for (NamedTensor& parameter : each_once(std::move(group.parameters))) {
    if (!parameter.tensor.defined() || !requires_grad(parameter.tensor))
      throw InvalidArgument("Optimizer: parameter '{}' requires no gradient", parameter.name);
    if (parameter.tensor.dtype() != DType::kFloat32)
      throw InvalidArgument("Optimizer: parameter '{}' is {}, expected float32: keep the weights in float32, and cast() them in forward()",
                            parameter.name, name_of(parameter.tensor.dtype()));
    for (const NamedTensor& other : parameters_)
      if (other.tensor.is_same(parameter.tensor))
        throw InvalidArgument("{}::add_group: parameter '{}' is in the optimizer already, as '{}'", kind_, parameter.name, other.name);
    all.push_back(std::move(parameter));
  }
  check_memory_is_apart(all);
  Device& device = all.front().tensor.device();
  Group added{parameters_.size(), all.size(), group.lr_factor, decay, lr_ * group.lr_factor, {}, {}};
  added.device_lr = Tensor::from<float>(std::array{added.lr}, {1}).to(device);
  if (counts_steps_) added.clock = new_clock(device);
  parameters_ = std::move(all);
  for (std::size_t i = added.begin; i < added.end; ++i)
    for (std::size_t k = 0; k < state_names_.size(); ++k)
      states_.push_back(Tensor::full(parameters_[i].tensor.shape(), initial_state_, device));
  groups_.push_back(std::move(added));
  tensors_.reserve(parameters_.size());
  follow_parameters();
}

void Optimizer::upload_lr(Group& group, float lr) {
  if (lr == group.lr) return;
  Device& device = group.device_lr.device();
  if (device.default_stream().is_capturing())
    throw InvalidArgument("{}::set_lr: a graph would repeat lr {} in every step: set the rate before the step, outside of what is recorded",
                          kind_, lr);
  device.upload(group.device_lr.data<float>(), &lr, sizeof lr, device.default_stream());
  group.lr = lr;
}

void Optimizer::set_lr(float lr) {
  if (!is_rate(lr)) throw InvalidArgument("{}::set_lr: lr {} must be a finite number and not negative", kind_, lr);
  for (const Group& group : groups_)
    if (!is_rate(lr * group.lr_factor))
      throw InvalidArgument("{}::set_lr: lr {} times the factor {} of a group is no finite number", kind_, lr, group.lr_factor);
  for (Group& group : groups_) upload_lr(group, lr * group.lr_factor);
  lr_ = lr;
}

void Optimizer::set_lr_factor(std::size_t group, float factor) {
  if (group >= groups_.size()) throw InvalidArgument("{}::set_lr_factor: group {} of {}", kind_, group, groups_.size());
  if (!is_rate(factor) || !is_rate(lr_ * factor))
    throw InvalidArgument("{}::set_lr_factor: factor {} must be a finite number and not negative", kind_, factor);
  upload_lr(groups_[group], lr_ * factor);
  groups_[group].lr_factor = factor;
}

float Optimizer::group_lr(std::size_t group) const {
  if (group >= groups_.size()) throw InvalidArgument("{}::group_lr: group {} of {}", kind_, group, groups_.size());
  return groups_[group].lr;
}

void Optimizer::zero_grad() {
  for (const NamedTensor& parameter : parameters_) clear_grad(parameter.tensor);
}

// Appends to tensors_ those of a group that have a gradient.
std::span<const UpdateTensor> Optimizer::gather(const Group& group) {
  const std::size_t first = tensors_.size(), states = state_names_.size();
  for (std::size_t i = group.begin; i < group.end; ++i) {
    const Tensor& parameter = parameters_[i].tensor;
    if (!has_grad(parameter)) continue;
    parameter.mark_changed();
    UpdateTensor tensor{parameter.data<float>(), grad(parameter).data<float>(), {}, parameter.count()};
    for (std::size_t k = 0; k < states; ++k) tensor.states[k] = states_[i * states + k].data<float>();
    tensors_.push_back(tensor);
  }
  return std::span(tensors_).subspan(first);
}

void Optimizer::step() {
  follow_parameters();
  Device& device = parameters_.front().tensor.device();
  const KernelTable& kernels = device.kernels();
  Stream& stream = device.default_stream();
  LossScaleState* const scale = loss_scaler_ == nullptr ? nullptr : loss_scaler_->data_on(device);
  tensors_.clear();  // its memory was reserved: spans stay valid
  if (scale != nullptr) {
    for (const Group& group : groups_) gather(group);
    kernels.find_bad_gradients(tensors_, scale, stream);
    tensors_.clear();
  }
  for (Group& group : groups_) {
    const std::span<const UpdateTensor> tensors = gather(group);
    if (tensors.empty()) continue;
    auto* const clock = group.clock.defined() ? clock_in(group.clock) : nullptr;
    update(tensors, {group.device_lr.data<float>(), group.weight_decay, scale, clock}, kernels, stream);
  }
  if (scale != nullptr) kernels.update_loss_scale(loss_scaler_->rule(), scale, stream);
}

// A module that moved to another device takes state and rates along.
void Optimizer::follow_parameters() {
  Device& device = parameters_.front().tensor.device();
  for (const NamedTensor& parameter : parameters_)
    if (&parameter.tensor.device() != &device)
      throw InvalidArgument("{}: parameter '{}' is on {}, the first one on {}: move the whole module with .to(device)", kind_,
                            parameter.name, parameter.tensor.device().name(), device.name());
  for (const Tensor& state : states_) move_to(device, state);
  for (const Group& group : groups_) {
    move_to(device, group.device_lr);
    move_to(device, group.clock);
  }
}

std::vector<NamedTensor> Optimizer::state() {
  std::vector<NamedTensor> named;
  for (std::size_t i = 0; i < states_.size(); ++i)
    named.push_back({parameters_[i / state_names_.size()].name + "." + state_names_[i % state_names_.size()], states_[i]});
  for (std::size_t i = 0; i < groups_.size(); ++i)
    if (groups_[i].clock.defined()) named.push_back({fmt::format("group{}.clock", i), groups_[i].clock});
  if (loss_scaler_ != nullptr) named.push_back({"loss_scaler.state", loss_scaler_->state_on(parameters_.front().tensor.device())});
  return named;
}

}  // namespace lockstep::optim
