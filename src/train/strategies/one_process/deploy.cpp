// Clones of a model, as in Slim's model_deploy.
//
//                     variables_device (the CPU): variables, optimizer
//            variables |    ^ gradients          variables |    ^ gradients
//                      v    |                              v    |
//     clone_0: forward, loss / 2, backward      clone_1: forward, loss / 2, backward      a part of the batch each
//              + regularization
//
// Each clone scales its loss by the number of clones, so that the sum of their gradients is the gradient of the mean
// over all samples; towers sums first and scales once: the same but for rounding, and the same bits where the number is
// a power of two. Traffic: the same as for towers: all variables to each of n clones, all gradients back, buffers to
// each clone and back from clone_0.
#include "lockstep/train/deploy.h"

#include <cmath>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/train/strategies/one_process/deploy_parts.h"
#include "src/train/strategies/one_process/device_copies.h"
#include "src/train/strategies/parameter_server/deploy_on_servers.h"
#include "src/train/strategies/strategy_options.h"

namespace lockstep::train {

struct Clones::Impl {
  Replica variables;  // its model does not compute
  DeviceCopies copies;
  std::vector<Clone> clones;  // by copy

  Impl(Replica all_variables, const Training& training, const std::vector<Device*>& devices)
      : variables(std::move(all_variables)), copies("deploy", training, devices, &variables) {}
};

Clones::Clones(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Clones::~Clones() = default;
Clones::Clones(Clones&&) noexcept = default;
Clones& Clones::operator=(Clones&&) noexcept = default;
nn::Module& Clones::variables() const { return *impl_->variables.model; }
const std::vector<NamedTensor>& Clones::parameters() const { return impl_->variables.parameters; }
const std::vector<Clone>& Clones::all() const { return impl_->clones; }

Clones create_clones(const DeploymentConfig& config, const std::function<std::unique_ptr<nn::Module>()>& model) {
  Device& variables_device = *config.variables_device().device;
  if (config.num_ps_tasks > 0)
    throw InvalidArgument(
        "create_clones: num_ps_tasks is {}: clones read variables of their own process; parameter servers are a "
        "strategy of their own, see "
        "docs/strategies.md",
        config.num_ps_tasks);
  if (!model) throw InvalidArgument("create_clones: no function that makes the model was given");
  const Training training{.model = model};
  std::vector<Device*> devices;
  for (int i = 0; i < config.num_clones; ++i) devices.push_back(config.clone_device(i).device);
  Replica variables = make_replica(training, variables_device);
  auto impl = std::make_unique<Clones::Impl>(std::move(variables), training, devices);
  for (int i = 0; i < config.num_clones; ++i) {
    const Replica& copy = impl->copies[i];
    impl->clones.push_back({config.clone_scope(i), copy.device, copy.model.get(), {}});
  }
  return Clones(std::move(impl));
}

namespace {

std::string scoped(const Clone& clone, const char* name) {
  return clone.scope.empty() ? name : clone.scope + "/" + name;
}

// The result of a clone's thread.
struct CloneResult {
  float loss = 0, scaled = 0;
  std::optional<float> regularization;
};

std::vector<NamedTensor> gradients_of(const Replica& variables) {
  std::vector<NamedTensor> all;
  for (const auto& [name, variable] : variables.parameters)
    all.push_back({name, has_grad(variable) ? grad(variable) : Tensor()});
  return all;
}

CloneResult compute(Clones::Impl& clones, int number, const Tensor& inputs, const Tensor& targets,
                    const LossFunction& loss, const RegularizationFunction& regularization) {
  const Replica& copy = clones.copies[number];
  Clone& clone = clones.clones[static_cast<std::size_t>(number)];
  for (const NamedTensor& parameter : copy.parameters) clear_grad(parameter.tensor);
  const nn::AddedLosses added;
  const Tensor outputs = clones.copies.forward(number, inputs);
  const Tensor mean = added.total(loss_of(loss, *copy.model, outputs, clones.copies.part_of(targets, number)));
  const Tensor scaled = gather_clone_loss(clone, mean, clones.copies.count()).tensor;
  Tensor total = scaled, penalty;
  if (number == 0 && regularization) {
    penalty = penalty_of(regularization, *copy.model);
    total = total + penalty;
  }
  total.backward();
  clone.outputs = detach(outputs);
  // Reads wait for the device: they come after everything has been queued.
  CloneResult result{mean.item(), scaled.item(), {}};
  if (penalty.defined()) result.regularization = penalty.item();
  copy.device->default_stream().synchronize();
  return result;
}

}  // namespace

NamedTensor gather_clone_loss(const Clone& clone, const Tensor& loss, int num_clones) {
  if (num_clones < 1)
    throw InvalidArgument("gather_clone_loss: num_clones is {}: at least one clone is needed", num_clones);
  if (!loss.defined())
    throw InvalidArgument("gather_clone_loss: the loss of {} is an undefined tensor", scoped(clone, "clone_loss"));
  if (num_clones == 1) return {scoped(clone, "clone_loss"), loss};
  return {scoped(clone, "scaled_clone_loss"),
          loss * Tensor::full(loss.shape(), 1 / static_cast<float>(num_clones), loss.device())};
}

OptimizedClones optimize_clones(const Clones& clones, const Tensor& inputs, const Tensor& targets,
                                const LossFunction& loss, const RegularizationFunction& regularization) {
  Clones::Impl& all = clones.impl();
  if (!loss) throw InvalidArgument("optimize_clones: no loss was given");
  all.copies.check_batch(inputs, targets);
  all.copies.scatter_changes(all.variables);
  all.copies.scatter_parameters(all.variables);
  all.copies.scatter_buffers(all.variables);
  std::vector<CloneResult> results(all.clones.size());
  all.copies.run([&](int number) {
    results[static_cast<std::size_t>(number)] = compute(all, number, inputs, targets, loss, regularization);
  });
  all.copies.sum_gradients(all.variables);
  OptimizedClones optimized;
  optimized.gradients = gradients_of(all.variables);
  for (std::size_t i = 0; i < results.size(); ++i) {
    optimized.losses.total += results[i].scaled + results[i].regularization.value_or(0);
    optimized.losses.clones.push_back({scoped(all.clones[i], "clone_loss"), results[i].loss});
  }
  optimized.losses.regularization = results.front().regularization;
  copy_values(all.copies[0].buffers, all.variables.buffers, all.copies.traffic());
  return optimized;
}

std::vector<NamedTensor> sum_clones_gradients(const std::vector<std::vector<NamedTensor>>& clone_gradients,
                                              Device& device) {
  if (clone_gradients.empty()) throw InvalidArgument("sum_clones_gradients: there is no clone");
  std::vector<NamedTensor> sums;
  for (const auto& [name, gradient] : clone_gradients.front())
    sums.push_back({name, gradient.defined() ? gradient.to(device) : gradient});
  for (std::size_t p = 0; p < sums.size(); ++p)
    if (sums[p].tensor.defined() && sums[p].tensor.is_same(clone_gradients.front()[p].tensor))
      sums[p].tensor = sums[p].tensor.clone();
  for (std::size_t i = 1; i < clone_gradients.size(); ++i) {
    if (clone_gradients[i].size() != sums.size())
      throw InvalidArgument("sum_clones_gradients: clone {} has {} gradients but clone 0 has {}: the counts must match",
                            i, clone_gradients[i].size(), sums.size());
    for (std::size_t p = 0; p < sums.size(); ++p) {
      const auto& [name, gradient] = clone_gradients[i][p];
      Tensor& sum = sums[p].tensor;
      if (name != sums[p].name || (gradient.defined() && sum.defined() && gradient.shape() != sum.shape()))
        throw InvalidArgument(
            "sum_clones_gradients: gradient {} of clone {} is '{}' of shape {}, of clone 0 '{}' of shape {}", p, i,
            name, gradient.defined() ? gradient.shape().text() : "none", sums[p].name,
            sum.defined() ? sum.shape().text() : "none");
      if (!gradient.defined()) continue;
      const Tensor here = gradient.to(device);
      if (sum.defined())
        device.kernels().add(sum, here, sum, device.default_stream());
      else
        sum = here.is_same(gradient) ? here.clone() : here;
    }
  }
  return sums;
}

std::vector<NamedTensor> average_gradients(const std::vector<std::vector<NamedTensor>>& tower_gradients,
                                           Device& device) {
  std::vector<NamedTensor> means = sum_clones_gradients(tower_gradients, device);
  const float part = 1 / static_cast<float>(tower_gradients.size());
  for (const auto& [name, mean] : means)
    if (mean.defined()) device.kernels().scale(mean, part, mean, device.default_stream());
  return means;
}

void add_gradients_summaries(SummaryWriter& writer, const std::vector<NamedTensor>& gradients, std::int64_t step) {
  for (const auto& [name, gradient] : gradients) {
    if (!gradient.defined()) {
      log::info("add_gradients_summaries: variable '{}' has no gradient", name);
      continue;
    }
    const Tensor host = gradient.to(cpu_device());
    double squares = 0;
    for (const float value : host.span<float>()) squares += static_cast<double>(value) * value;
    writer.add_histogram(name + "/gradient", host, step);
    writer.add_scalar(name + "/gradient_norm", std::sqrt(squares), step);
  }
}

DeployedModel deploy(const DeploymentConfig& config, const Training& training, const DeployOptions& options) {
  if (!training.model || !training.optimizer || !training.loss)
    throw InvalidArgument("deploy: Training needs all of .model, .optimizer and .loss");
  if (config.num_ps_tasks > 0) return deploy_on_servers(config, training, options);
  if (!options.group) check_is_no_rank("deploy", "this");
  if (options.group && options.group->world_size() > 1)
    throw InvalidArgument("deploy: .group has {} ranks, expected this one alone: .group = group->split(group->rank())",
                          options.group->world_size());
  check_has_batches(options);
  DeployedModel deployed;
  deployed.clones = std::make_shared<Clones>(create_clones(config, training.model));
  deployed.optimizer = make_optimizer("deploy", training, deployed.clones->parameters());
  const auto last = std::make_shared<OptimizedClones>();
  deployed.losses = std::shared_ptr<const CloneLosses>(last, &last->losses);
  const auto run = [clones = deployed.clones, optimizer = deployed.optimizer, last, loss = training.loss,
                    options]() -> std::optional<float> {
    const auto batch = next_batch_of(options);
    if (!batch) return std::nullopt;
    *last = optimize_clones(*clones, batch->inputs(), batch->targets(), loss, options.regularization);
    optimizer->step();
    return last->losses.total;
  };
  deployed.train_op = {.run = run,
                       .model = &deployed.clones->variables(),
                       .optimizer = deployed.optimizer.get(),
                       .group = options.group};
  let_seek(deployed.train_op, options);
  deployed.summary_op = [last, with_gradients = options.summarize_gradients](SummaryWriter& writer, std::int64_t step) {
    add_loss_summaries(writer, last->losses, step);
    if (with_gradients) add_gradients_summaries(writer, last->gradients, step);
  };
  return deployed;
}

}  // namespace lockstep::train
