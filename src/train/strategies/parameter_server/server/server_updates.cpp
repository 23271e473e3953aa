#include "src/train/strategies/parameter_server/server/server_updates.h"

#include <algorithm>

namespace lockstep::train {

namespace {

using State = ParameterClient::State;

}  // namespace

ServerUpdates::ServerUpdates(const ParameterServerJob& job, const ServerShard& shard, ParameterClients& clients)
    : job_(job), shard_(shard), clients_(clients), decisions_(job) {
  for (std::size_t i = 0; i < clients_.size(); ++i)
    gradients_.push_back(Tensor::zeros({shard_.floats()}, DType::kFloat32, cpu_device()));
}

void ServerUpdates::update_by(std::size_t worker) {
  ++count_;
  shard_.update(clients_[worker].notice, gradients_[worker]);
}

void ServerUpdates::update_by_steps() {
  if (has_backup())
    job_.tasks.own.index == 0 ? decide() : follow();
  else if (job_.options.staleness == 0)
    update_by_all();
}

// Updates by the mean of all gradients, when all have arrived.
void ServerUpdates::update_by_all() {
  const std::vector<ParameterClient>& all = clients_.all();
  const auto waits = [](const ParameterClient& client) { return client.is(State::kWaits); };
  const auto waiting = std::find_if(all.begin(), all.end(), waits);
  if (waiting == all.end()) return;
  for (std::size_t i = 0; i < clients_.size(); ++i) check_goes_on(i, static_cast<std::size_t>(waiting - all.begin()));
  if (!std::all_of(all.begin(), all.end(), waits)) return;
  std::vector<std::size_t> workers(clients_.size());
  for (std::size_t i = 0; i < workers.size(); ++i) workers[i] = i;
  update_by_mean(workers);
}

// Worker `waiting` waits for the gradients of `worker`.
void ServerUpdates::check_goes_on(std::size_t worker, std::size_t waiting) const {
  if (clients_[worker].is_active() && !clients_[worker].is(State::kCallEnded)) return;
  throw InvalidArgument(
      "parameter_server: {} has finished after {} steps, but {} is in step {}: synchronous workers must make the "
      "same number of steps; give them the same number of batches, or a .staleness above 0",
      clients_.describe(worker), clients_[worker].clock, clients_.describe(waiting), clients_[waiting].clock);
}

// On ps:0, with backup workers.
void ServerUpdates::decide() {
  StepDecision decision{count_ + 1, {}};
  for (std::size_t i = 0; i < clients_.size(); ++i)
    if (clients_[i].is(State::kWaits) && clients_[i].clock == decision.step) decision.workers.push_back(i);
  const std::size_t wanted = clients_.size() - static_cast<std::size_t>(job_.options.backup_workers);
  if (decision.workers.size() >= wanted) {
    decisions_.announce(decision);
    return update_by_mean(decision.workers);
  }
  if (decision.workers.empty() || clients_.active() >= wanted) return;
  throw InvalidArgument(
      "parameter_server: {} is in step {}, and {} of {} workers are left, of which a step needs {}: with "
      ".backup_workers = {} all workers loop until global_step() of as<ParameterWorker>() has the end",
      clients_.describe(decision.workers.front()), decision.step, clients_.active(), clients_.size(), wanted,
      job_.options.backup_workers);
}

// On the other servers.
void ServerUpdates::follow() {
  while (!decisions_.pending().empty()) {
    const StepDecision& decision = decisions_.pending().front();
    for (const std::size_t worker : decision.workers)
      if (!clients_[worker].is(State::kWaits) || clients_[worker].clock != decision.step) return;  // on their way
    update_by_mean(decision.workers);
    decisions_.pending().pop_front();
  }
}

// The mean of these gradients, in the order of the workers.
void ServerUpdates::update_by_mean(const std::vector<std::size_t>& workers) {
  Device& device = cpu_device();
  const Tensor& mean = gradients_[workers.front()];
  for (const std::size_t worker : workers) {
    clients_[worker].is_counted = true;
    if (worker != workers.front()) device.kernels().add(mean, gradients_[worker], mean, device.default_stream());
  }
  device.kernels().scale(mean, 1 / static_cast<float>(workers.size()), mean, device.default_stream());
  ++count_;
  shard_.update(clients_[workers.front()].notice, mean);
}

}  // namespace lockstep::train
