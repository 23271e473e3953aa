#include "src/train/strategies/one_process/device_copies.h"

#include <algorithm>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/random.h"

namespace lockstep::train {

namespace {

std::vector<Replica> make_copies(const Training& training, const std::vector<Device*>& devices,
                                 const Replica* variables) {
  std::vector<Replica> copies;
  for (Device* device : devices) copies.push_back(make_replica(training, *device));
  for (Replica& copy : copies)
    if (variables != nullptr || &copy != &copies.front())
      load_state(variables == nullptr ? copies.front() : *variables, copy);
  return copies;
}

std::vector<Device*> counted_devices(std::vector<Device*> devices, const Replica* variables) {
  if (variables != nullptr && std::find(devices.begin(), devices.end(), variables->device) == devices.end())
    devices.push_back(variables->device);
  return devices;
}

}  // namespace

DeviceCopies::DeviceCopies(const char* strategy, const Training& training, const std::vector<Device*>& devices,
                           const Replica* variables)
    : strategy_(strategy),
      copies_(make_copies(training, devices, variables)),
      traffic_(counted_devices(devices, variables)),
      threads_(static_cast<int>(devices.size())) {}

void DeviceCopies::scatter_changes(const Replica& model) {
  for (Replica& copy : copies_)
    if (&copy != &model) follow_model(model, copy, traffic_);
}

void DeviceCopies::scatter_parameters(const Replica& model) {
  for (Replica& copy : copies_)
    if (&copy != &model) copy_values(model.parameters, copy.parameters, traffic_);
}

void DeviceCopies::scatter_buffers(const Replica& model) {
  for (Replica& copy : copies_)
    if (&copy != &model) copy_values(model.buffers, copy.buffers, traffic_);
}

void DeviceCopies::check_samples(const Tensor& inputs, const Tensor& targets) const {
  train::check_samples(strategy_, inputs, targets);
}

void DeviceCopies::check_batch(const Tensor& inputs, const Tensor& targets) const {
  train::check_batch(strategy_, inputs, targets, copies_.size());
}

bool DeviceCopies::has_rows(const Tensor& batch, int copy) const {
  return rows_of(batch.shape()[0], copy, count()).count > 0;
}

Tensor DeviceCopies::part_of(const Tensor& batch, int copy) const {
  return rows_of_part(strategy_, batch, copy, count(), *(*this)[copy].device);
}

void DeviceCopies::count_parts(const Tensor& batch) {
  const std::size_t row_bytes = batch.bytes() / static_cast<std::size_t>(batch.shape()[0]);
  for (int copy = 0; copy < count(); ++copy)
    traffic_.add(batch.device(), *(*this)[copy].device,
                 static_cast<std::size_t>(rows_of(batch.shape()[0], copy, count()).count) * row_bytes);
}

Tensor DeviceCopies::forward(int copy, const Tensor& inputs) {
  set_sample_numbers(numbers_of_part(sample_numbers(), inputs, copy, count()));
  return (*(*this)[copy].model)(part_of(inputs, copy));
}

Tensor DeviceCopies::compute_gradient(const Training& training, int number, const Tensor& inputs, const Tensor& targets,
                                      optim::LossScaler* scaler) {
  const Replica& copy = (*this)[number];
  for (const NamedTensor& parameter : copy.parameters) clear_grad(parameter.tensor);
  if (!has_rows(inputs, number)) return {};
  const nn::AddedLosses added;
  const Tensor outputs = forward(number, inputs);
  const Tensor loss = total_loss(training, *copy.model, outputs, part_of(targets, number), added, scaler,
                                 number == 0 ? &losses_ : nullptr);
  weighted_backward(loss, weight_of_part(inputs, number, count()));
  return loss;
}

std::vector<float> DeviceCopies::compute_gradients(const Training& training, const Tensor& inputs,
                                                   const Tensor& targets, optim::LossScaler* scaler) {
  std::vector<float> losses(copies_.size());
  run([&](int number) {
    const Tensor loss = compute_gradient(training, number, inputs, targets, scaler);
    if (!loss.defined()) return;
    losses[static_cast<std::size_t>(number)] = loss.item();  // each device has a thread: none waits for another's read
    (*this)[number].device->default_stream().synchronize();  // other threads will read its gradients
  });
  count_parts(inputs);
  count_parts(targets);
  return losses;
}

void DeviceCopies::zero_missing_gradients() {
  for (std::size_t p = 0; p < copies_.front().parameters.size(); ++p) {
    const auto reached = [p](const Replica& copy) { return has_grad(copy.parameters[p].tensor); };
    if (std::none_of(copies_.begin(), copies_.end(), reached)) continue;
    for (const Replica& copy : copies_) {
      if (reached(copy)) continue;
      zero_gradient(copy.parameters[p].tensor);
      copy.device->default_stream().synchronize();
    }
  }
}

void DeviceCopies::prepare_sums(const Replica& variables) {
  std::vector<Tensor> received;  // received_ stays empty if memory runs out on the way
  for (const auto& [name, variable] : variables.parameters) {
    received.push_back(Tensor::empty(variable.shape(), variable.dtype(), *variables.device));
    if (&variables != &copies_.front()) bind_grad(variable, variables.device->allocate(variable.bytes()));
  }
  received_ = std::move(received);
}

void DeviceCopies::sum_gradients(const Replica& variables, float factor) {
  zero_missing_gradients();
  if (received_.empty()) prepare_sums(variables);
  const bool is_first_copy = &variables == &copies_.front();  // its gradients are there
  Device& device = *variables.device;
  for (std::size_t p = 0; p < variables.parameters.size(); ++p) {
    const Tensor& variable = variables.parameters[p].tensor;
    if (!is_first_copy) clear_grad(variable);
    if (!has_grad(copies_.front().parameters[p].tensor)) continue;  // no other copy has one
    const Tensor sum = grad(variable);
    for (std::size_t i = is_first_copy ? 1 : 0; i < copies_.size(); ++i) {
      const Tensor gradient = grad(copies_[i].parameters[p].tensor);
      const Tensor& here = i == 0 ? sum : received_[p];
      here.copy_from(gradient);
      traffic_.add(gradient.device(), device, gradient.bytes());
      if (i > 0) device.kernels().add(sum, here, sum, device.default_stream());
    }
    if (factor != 1) device.kernels().scale(sum, factor, sum, device.default_stream());
    if (!is_first_copy) mark_grad_written(variable);
  }
}

float mean_of(const std::vector<float>& losses, const Tensor& batch) {
  const auto parts = static_cast<int>(losses.size());
  double sum = 0;
  for (int part = 0; part < parts; ++part)
    sum += static_cast<double>(losses[static_cast<std::size_t>(part)]) * weight_of_part(batch, part, parts);
  return static_cast<float>(sum / parts);
}

}  // namespace lockstep::train
