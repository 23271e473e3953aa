#include "src/train/strategies/parameter_server/deploy_on_servers.h"

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/variable.h"
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

// Parts of a step's losses that the strategy does not tell apart.
struct FirstClone {
  const nn::Module* model = nullptr;
  Tensor loss, penalty;  // of the last step: without the losses of modules, and the regularization
};

// Adds the regularization to the loss of a worker's first clone. The strategy takes the mean over the clones, so the
// factor makes it count once, as in Slim.
Training with_regularization(const Training& training, const DeploymentConfig& config,
                             const RegularizationFunction& regularization, const std::shared_ptr<FirstClone>& first) {
  if (!regularization) return training;
  Training total = training;
  total.model = [make_model = training.model, first] {
    auto model = make_model();
    if (first->model == nullptr) first->model = model.get();
    return model;
  };
  total.loss = [loss = training.loss, regularization, first, clones = static_cast<float>(config.num_clones)](
                   nn::Module& clone, const Tensor& outputs, const Tensor& targets) {
    const Tensor own = loss_of(loss, clone, outputs, targets);
    if (&clone != first->model) return own;
    const Tensor penalty = penalty_of(regularization, clone);
    first->loss = detach(own), first->penalty = detach(penalty);
    return own + clones * penalty;
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

CloneLosses losses_of(const DeploymentConfig& config, Strategy& strategy, const FirstClone& first, float total) {
  CloneLosses losses{.total = total};
  for (const NamedLoss& part : strategy.as<PartLosses>()->losses()) {
    const std::string scope = config.clone_scope(static_cast<int>(losses.clones.size()));
    losses.clones.push_back({scope.empty() ? "clone_loss" : scope + "/clone_loss", part.value});
  }
  if (!first.penalty.defined()) return losses;
  losses.regularization = first.penalty.item();
  const std::vector<NamedLoss> all = strategy.step_losses();  // the loss, those of modules, the total
  float added = 0;
  for (std::size_t i = 1; i + 1 < all.size(); ++i) added += all[i].value;
  losses.clones.front().value = first.loss.item() + added;
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
  const auto first = std::make_shared<FirstClone>();
  const std::shared_ptr<Strategy> strategy =
      make_strategy(kParameterServer, with_regularization(training, config, options.regularization, first), chosen);
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
  deployed.train_op = {.run = [strategy, last, first, config, options]() -> std::optional<float> {
                         const auto batch = next_batch_of(options);
                         if (!batch) return std::nullopt;
                         check_batch("deploy", batch->inputs(), batch->targets(), strategy->devices().size());
                         const float loss = strategy->step(batch->inputs(), batch->targets());
                         *last = losses_of(config, *strategy, *first, loss);
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
