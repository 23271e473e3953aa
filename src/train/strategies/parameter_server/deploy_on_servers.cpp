#include "src/train/strategies/parameter_server/deploy_on_servers.h"

#include "lockstep/comm/agreement.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/train/strategies/one_process/deploy_parts.h"
#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

namespace {

void check_job(const DeploymentConfig& config, const DeployOptions& options, const ProcessGroup& group) {
  if (group.world_size() != config.num_replicas + config.num_ps_tasks)
    throw InvalidArgument(
        "deploy: num_replicas {} and num_ps_tasks {} need {} processes, the job has {}: lockrun --ps {} --workers {}",
        config.num_replicas, config.num_ps_tasks, config.num_replicas + config.num_ps_tasks, group.world_size(),
        config.num_ps_tasks, config.num_replicas);
  check_has_batches(options);
  if (options.summarize_gradients)
    throw InvalidArgument(
        "deploy: .summarize_gradients: with num_ps_tasks {} the servers have the gradients: leave it out",
        config.num_ps_tasks);
}

// The clones of a worker, and the mean of their losses with the regularization, which Slim adds once.
Training with_regularization(const Training& training, const RegularizationFunction& regularization) {
  if (!regularization) return training;
  Training total = training;
  total.loss = [loss = training.loss, regularization](nn::Module& clone, const Tensor& outputs, const Tensor& targets) {
    nn::add_loss(regularization(clone), "regularization_loss");
    return loss(clone, outputs, targets);
  };
  return total;
}

StrategyOptions options_of(const DeploymentConfig& config, const std::shared_ptr<ProcessGroup>& group) {
  StrategyOptions chosen{.group = group};
  // Without lockrun's variables the last processes are the servers.
  const auto task = task_of_environment([](const char* name) { return env::text(name); });
  if (!task) chosen.parameter_server.servers = config.num_ps_tasks;
  const bool is_server = task ? task->job == Task::Job::kServer : group->rank() >= config.num_replicas;
  for (int clone = 0; clone < config.num_clones && !is_server; ++clone)
    chosen.devices.push_back(config.clone_device(clone).device);
  return chosen;
}

CloneLosses losses_of(const DeploymentConfig& config, const Strategy& strategy, float total) {
  CloneLosses losses{.total = total};
  const std::string scope = config.clone_scope(0);
  for (const NamedLoss& loss : strategy.step_losses()) {
    if (loss.name == "loss")
      losses.clones.push_back({scope.empty() ? "clone_loss" : scope + "/clone_loss", loss.value});
    if (loss.name == "regularization_loss") losses.regularization = loss.value;
  }
  return losses;
}

}  // namespace

DeployedModel deploy_on_servers(const DeploymentConfig& config, const Training& training,
                                const DeployOptions& options) {
  const std::shared_ptr<ProcessGroup> group = group_of({.group = options.group});
  StrategyOptions chosen;
  on_all_ranks(group, [&] {
    check_job(config, options, *group);
    chosen = options_of(config, group);
  });
  const std::shared_ptr<Strategy> strategy =
      make_strategy(kParameterServer, with_regularization(training, options.regularization), chosen);
  DeployedModel deployed;
  if (auto* const server = strategy->as<ParameterHolder>()) {
    deployed.train_op.serve = [strategy, server] { server->serve(); };
    return deployed;
  }
  const std::shared_ptr<ProcessGroup> workers = strategy->workers();
  on_all_ranks(workers, [&] {
    if (config.replica_id != workers->rank())
      throw InvalidArgument("deploy: replica_id is {} on worker:{}: expected the worker's number", config.replica_id,
                            workers->rank());
  });
  const auto last = std::make_shared<CloneLosses>();
  deployed.losses = last;
  deployed.train_op = {.run = [strategy, last, config, options]() -> std::optional<float> {
                         const auto batch = next_batch_of(options);
                         if (!batch) return std::nullopt;
                         const float loss = strategy->step(batch->inputs(), batch->targets());
                         *last = losses_of(config, *strategy, loss);
                         return loss;
                       },
                       .model = &strategy->model(),
                       .optimizer = &strategy->optimizer(),
                       .before_save = [strategy] { strategy->optimizer(); },  // fetches the servers' state
                       .abort = [group](const std::string& reason) { group->abort(reason); },
                       .group = workers};
  let_seek(deployed.train_op, options);
  deployed.summary_op = [last](SummaryWriter& writer, std::int64_t step) { add_loss_summaries(writer, *last, step); };
  return deployed;
}

}  // namespace lockstep::train
