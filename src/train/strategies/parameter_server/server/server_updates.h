// The updates of a server's shard: by each worker's gradients as they arrive, or by the mean of a step's when the step
// is complete.
#pragma once

#include <cstdint>
#include <vector>

#include "src/train/strategies/parameter_server/server/parameter_clients.h"
#include "src/train/strategies/parameter_server/server/server_shard.h"
#include "src/train/strategies/parameter_server/server/step_decisions.h"

namespace lockstep::train {

class ServerUpdates {
 public:
  // All of these outlive this.
  ServerUpdates(const ParameterServerJob& job, const ServerShard& shard, ParameterClients& clients);

  std::int64_t count() const { return count_; }
  // Memory for this worker's gradients, which are laid out as the shard's weights are. In use from the worker's step
  // until the worker is answered.
  const Tensor& gradients(std::size_t worker) const { return gradients_[worker]; }
  StepDecisions& decisions() { return decisions_; }

  // Asynchronous: one update by the gradients of this worker.
  void update_by(std::size_t worker);
  // Synchronous: an update by each step that is complete now. Throws InvalidArgument if a worker waits for one that
  // makes no further steps. Does nothing in an asynchronous job.
  void update_by_steps();

 private:
  bool has_backup() const { return job_.options.backup_workers > 0; }
  void update_by_all();
  void check_goes_on(std::size_t worker, std::size_t waiting) const;
  void decide();
  void follow();
  void update_by_mean(const std::vector<std::size_t>& workers);

  const ParameterServerJob& job_;
  const ServerShard& shard_;
  ParameterClients& clients_;
  StepDecisions decisions_;
  Tensors gradients_;  // by worker
  std::int64_t count_ = 0;
};

}  // namespace lockstep::train
