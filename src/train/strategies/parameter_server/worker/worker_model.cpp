#include "src/train/strategies/parameter_server/worker/worker_model.h"

#include "lockstep/autograd/variable.h"

namespace lockstep::train {

WorkerModel::WorkerModel(ParameterServerJob& job) : job_(job), has_gradient_(job.model().parameters.size()) {
  Device& device = *job_.devices.front();
  gradients_ = Tensor::zeros({job_.layout.total}, DType::kFloat32, device);
  weights_ = Tensor::zeros({job_.layout.total}, DType::kFloat32, device);
  const bool is_on_host = device.kind() == DeviceKind::kCpu;
  host_gradients_ = is_on_host ? gradients_ : Tensor::zeros({job_.layout.total}, DType::kFloat32, cpu_device());
  host_weights_ = is_on_host ? weights_ : Tensor::zeros({job_.layout.total}, DType::kFloat32, cpu_device());
  for (const PlacedPiece& piece : job_.layout.pieces) {
    const Tensor& parameter = replica().parameters[piece.parameter].tensor;
    if (piece.is_whole) move_into(weights_, piece.at, parameter);
    if (piece.is_whole)
      bind_grad(parameter, floats_of(gradients_, piece.at, piece.count).buffer());
    else if (piece.begin == 0)
      bind_grad(parameter, device.allocate(parameter.bytes()));
  }
}

float WorkerModel::compute_gradients(const Tensor& inputs, const Tensor& targets, float weight) {
  const float loss = job_.copies ? compute_on_all(inputs, targets, weight) : compute_on_one(inputs, targets, weight);
  const std::vector<NamedTensor>& parameters = replica().parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    has_gradient_[i] = has_grad(parameters[i].tensor) ? 1.0F : 0.0F;
    if (!has_grad(parameters[i].tensor)) zero_gradient(parameters[i].tensor);  // other workers may have reached it
  }
  for (const PlacedPiece& piece : job_.layout.pieces)
    if (!piece.is_whole)
      floats_of(gradients_, piece.at, piece.count)
          .copy_from(floats_of(grad(parameters[piece.parameter].tensor), piece.begin, piece.count));
  if (!host_gradients_.is_same(gradients_)) host_gradients_.copy_from(gradients_);
  for (const PlacedPiece& piece : job_.layout.pieces)
    host_gradients_.data<float>()[piece.flag] = has_gradient_[piece.parameter];
  return loss;
}

float WorkerModel::compute_on_one(const Tensor& inputs, const Tensor& targets, float weight) {
  Device& device = *job_.devices.front();
  const Tensor own_inputs = inputs.to(device), own_targets = targets.to(device);
  for (const NamedTensor& parameter : replica().parameters) clear_grad(parameter.tensor);
  const nn::AddedLosses added;
  nn::Module& model = *replica().model;
  const Tensor outputs = model(own_inputs);
  const Tensor loss = total_loss(job_.training, model, outputs, own_targets, added, /*scaler=*/nullptr, &losses_);
  weighted_backward(loss, weight);
  part_losses_ = {loss.item()};
  return part_losses_.front();
}

float WorkerModel::compute_on_all(const Tensor& inputs, const Tensor& targets, float weight) {
  DeviceCopies& copies = *job_.copies;
  copies.scatter_changes(copies[0]);
  part_losses_ = copies.compute_gradients(job_.training, inputs, targets, /*scaler=*/nullptr);
  copies.sum_gradients(copies[0], weight / static_cast<float>(copies.count()));
  copies.scatter_buffers(copies[0]);
  return mean_of(part_losses_, inputs);
}

const Tensor& WorkerModel::weights_to_send() {
  for (const PlacedPiece& piece : job_.layout.pieces)
    if (!piece.is_whole)
      floats_of(weights_, piece.at, piece.count)
          .copy_from(floats_of(replica().parameters[piece.parameter].tensor, piece.begin, piece.count));
  if (!host_weights_.is_same(weights_)) host_weights_.copy_from(weights_);
  return host_weights_;
}

void WorkerModel::take_over_weights() {
  if (!host_weights_.is_same(weights_)) weights_.copy_from(host_weights_);
  for (const PlacedPiece& piece : job_.layout.pieces)
    if (!piece.is_whole)
      floats_of(replica().parameters[piece.parameter].tensor, piece.begin, piece.count)
          .copy_from(floats_of(weights_, piece.at, piece.count));
  for (const NamedTensor& parameter : replica().parameters) parameter.tensor.mark_changed();
  if (job_.copies) job_.copies->scatter_parameters(replica());
}

void WorkerModel::spread_rest() {
  if (!job_.copies) return;
  job_.copies->scatter_parameters(replica());
  job_.copies->scatter_buffers(replica());
  job_.copies->scatter_changes(replica());
}

std::vector<StateRange> WorkerModel::state_on(std::size_t server) const {
  std::vector<StateRange> ranges;
  for (const PlacedPiece& piece : job_.layout.pieces)
    if (piece.server == static_cast<int>(server))
      ranges.push_back({job_.model().parameters[piece.parameter].name, piece.begin, piece.count});
  return ranges;
}

std::vector<DeviceTraffic> WorkerModel::traffic(std::uint64_t sent, std::uint64_t received) const {
  std::vector<DeviceTraffic> all =
      job_.copies ? job_.copies->traffic().all() : std::vector<DeviceTraffic>{{job_.devices.front()}};
  all.front().sent += sent;
  all.front().received += received;
  return all;
}

}  // namespace lockstep::train
