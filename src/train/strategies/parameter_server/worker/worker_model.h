// The model of a worker of `parameter_server`, on one device or a copy on each of several, and its weights and
// gradients in the order in which they are sent.
#pragma once

#include <string>
#include <vector>

#include "src/train/strategies/parameter_server/optimizer_state.h"
#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

// On the CPU the model's tensors are windows of what is sent, except for split ones, which are copied; those of a GPU
// pass through a copy on the host.
class WorkerModel {
 public:
  // `job` outlives this.
  explicit WorkerModel(ParameterServerJob& job);

  Replica& replica() { return job_.model(); }
  const std::vector<Device*>& devices() const { return job_.devices; }

  // Forward, loss and backward. Returns the mean loss; gradients() are then `weight` times those of this mean.
  float compute_gradients(const Tensor& inputs, const Tensor& targets, float weight);
  std::vector<NamedLoss> losses() const { return job_.copies ? job_.copies->losses().values() : losses_.values(); }
  const std::vector<float>& part_losses() const { return part_losses_; }  // by device; 0 without samples

  const Tensor& gradients() const { return host_gradients_; }
  // Memory for the servers' weights, which take_over_weights() copies to the model.
  const Tensor& received_weights() const { return host_weights_; }
  const Tensor& weights_to_send();
  void take_over_weights();
  // Frozen parameters and buffers: copies those of the first device to all others.
  void spread_rest();

  // The elements of the optimizer's state that server `server` holds.
  std::vector<StateRange> state_on(std::size_t server) const;
  // Between the devices, and what has passed to and from the servers.
  std::vector<DeviceTraffic> traffic(std::uint64_t sent, std::uint64_t received) const;

 private:
  float compute_on_one(const Tensor& inputs, const Tensor& targets, float weight);
  float compute_on_all(const Tensor& inputs, const Tensor& targets, float weight);

  ParameterServerJob& job_;
  Tensor gradients_, weights_;            // on the first device
  Tensor host_gradients_, host_weights_;  // the same tensors if the device is the CPU
  std::vector<float> has_gradient_;       // by parameter: 1 if it has one in this step
  std::vector<float> part_losses_;
  StepLosses losses_;
};

}  // namespace lockstep::train
