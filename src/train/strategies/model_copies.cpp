#include "src/train/strategies/model_copies.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/loss_scaler.h"
#include "lockstep/train/strategy_scope.h"
#include "src/core/base/message_text.h"
#include "src/nn/module/build_scope.h"
#include "src/nn/module/trainable.h"
#include "src/optim/step_parts.h"

namespace lockstep::train {

std::vector<Device*> default_devices() {
  const std::vector<Device*> gpus = logical_devices(DeviceKind::kCuda);
  return gpus.empty() ? logical_devices(DeviceKind::kCpu) : gpus;
}

TrafficCount::TrafficCount(const std::vector<Device*>& devices) {
  for (const Device* device : devices) all_.push_back({device});
}

void TrafficCount::add(const Device& from, const Device& to, std::size_t bytes) {
  if (&from == &to) return;
  for (DeviceTraffic& each : all_) {
    if (each.device == &from) each.sent += bytes;
    if (each.device == &to) each.received += bytes;
  }
}

namespace {

const nn::Module* built_elsewhere(const nn::Module& module) {
  if (module.built_in_scope() != nn::build_scope) return &module;
  for (const auto& [name, child] : module.children())
    if (const nn::Module* const found = built_elsewhere(*child)) return found;
  return nullptr;
}

}  // namespace

void check_built_in_scope(const nn::Module& model) {
  const nn::Module* const found = built_elsewhere(model);
  if (found == nullptr) return;
  const auto scope = StrategyChoice::of_thread();
  throw InvalidArgument(
      "strategy: a module of the model ({}) was built {}, and the strategy is {}: its variables are not this "
      "strategy's; build the whole model in the function that is given as the model, which is called once for each "
      "replica",
      found->kind(),
      found->built_in_scope() == 0 ? "outside of every scope"
      : scope                      ? "in another scope"
                                   : "in a strategy's scope",
      scope ? fmt::format("made in the scope of '{}'", scope->name()) : "made outside of it");
}

Replica make_replica(const Training& training, Device& device) {
  Replica replica{&device, training.model()};
  if (!replica.model) throw InvalidArgument("strategy: Training::model() returned no module");
  check_built_in_scope(*replica.model);
  replica.model->to(device);
  replica.parameters = nn::trainable_parameters(*replica.model);
  replica.buffers = replica.model->named_buffers();
  for (NamedTensor& parameter : replica.model->named_parameters())
    if (!requires_grad(parameter.tensor)) replica.frozen.push_back(std::move(parameter));
  if (replica.parameters.empty())
    throw InvalidArgument("strategy: the model has no parameter that requires a gradient");
  return replica;
}

void load_state(const Replica& model, Replica& replica) {
  replica.model->load_state_dict(model.model->state_dict());
  replica.frozen_versions.clear();
  for (const NamedTensor& parameter : model.frozen) replica.frozen_versions.push_back(parameter.tensor.version());
}

void copy_modes(const nn::Module& from, nn::Module& to) {
  to.train(from.is_training());
  for (std::size_t i = 0; i < from.children().size() && i < to.children().size(); ++i)
    copy_modes(*from.children()[i].second, *to.children()[i].second);
}

void follow_model(const Replica& model, Replica& replica, TrafficCount& traffic) {
  copy_modes(*model.model, *replica.model);
  for (std::size_t i = 0; i < replica.frozen_versions.size(); ++i) {
    const Tensor &from = model.frozen[i].tensor, &to = replica.frozen[i].tensor;
    if (std::exchange(replica.frozen_versions[i], from.version()) == from.version()) continue;
    to.copy_from(from);
    traffic.add(from.device(), to.device(), from.bytes());
  }
}

std::unique_ptr<optim::Optimizer> make_optimizer(const char* strategy, const Training& training,
                                                 const std::vector<NamedTensor>& parameters) {
  std::unique_ptr<optim::Optimizer> optimizer = training.optimizer(parameters);
  if (!optimizer) throw InvalidArgument("{}: Training::optimizer() returned null", strategy);
  return optimizer;
}

std::string description_of(const optim::LossScaler* scaler) {
  if (scaler == nullptr) return "no LossScaler";
  const optim::LossScalerOptions& options = scaler->options();
  return fmt::format(
      "a LossScaler at {} (growth {}, backoff {}, growth_interval {}, min_scale {}, max_skips_in_a_row {})",
      scaler->value(), options.growth, options.backoff, options.growth_interval, options.min_scale,
      options.max_skips_in_a_row);
}

void copy_values(const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to, TrafficCount& traffic) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i].tensor.copy_from(from[i].tensor);
    traffic.add(from[i].tensor.device(), to[i].tensor.device(), from[i].tensor.bytes());
  }
}

void zero_gradient(const Tensor& parameter) {
  if (!grad(parameter).defined()) bind_grad(parameter, parameter.device().allocate(parameter.bytes()));
  grad(parameter).fill(0);
  mark_grad_written(parameter);
}

std::int64_t whole_lines(std::int64_t floats) {
  constexpr std::int64_t kLine = 16;
  return (floats + kLine - 1) / kLine * kLine;
}

Tensor floats_of(const Tensor& all, std::int64_t begin, std::int64_t count) {
  return Tensor::wrap(all.buffer().window(static_cast<std::size_t>(begin) * sizeof(float),
                                          static_cast<std::size_t>(count) * sizeof(float)),
                      {count});
}

void check_float32(const char* strategy, const std::vector<NamedTensor>& parameters) {
  for (const auto& [name, tensor] : parameters)
    if (tensor.dtype() != DType::kFloat32)
      throw InvalidArgument("{}: parameter '{}' is {}: expected float32", strategy, name, name_of(tensor.dtype()));
}

std::shared_ptr<ProcessGroup> group_of(const StrategyOptions& options, bool of_one_process) {
  if (options.group) return options.group;
  if (auto group = default_process_group()) return group;
  return of_one_process && place_in_job().world_size == 1 ? nullptr : init_process_group();
}

Place place_in_job() {
  return read_job_environment([](const char* name) { return env::text(name); }).place;
}

void check_no_autocast(const char* strategy) {
  if (const DType type = AutoCast::active(); type != DType::kFloat32)
    throw InvalidArgument(
        "{}: step() under an AutoCast to {}: this strategy sends activations as float32; for 16 bits use ddp, mirrored "
        "or towers",
        strategy, name_of(type));
}

Tensor loss_of(const LossFunction& loss_function, nn::Module& model, const Tensor& outputs, const Tensor& targets) {
  const Tensor loss = loss_function(model, outputs, targets);
  if (!loss.defined() || loss.count() != 1)
    throw InvalidArgument("strategy: Training::loss() returned {}; expected a scalar",
                          loss.defined() ? "a tensor of shape " + loss.shape().text() : "no tensor");
  return loss;
}

void StepLosses::add(const std::string& name, const Tensor& loss) { losses_.push_back({name, detach(loss)}); }

std::vector<NamedLoss> StepLosses::values() const {
  std::vector<NamedLoss> values;
  for (const auto& [name, loss] : losses_) values.push_back({name, loss.item()});
  return values;
}

optim::LossScaler* loss_scaler_of(optim::Optimizer* optimizer) {
  return optimizer == nullptr ? nullptr : optim::StepParts(*optimizer).loss_scaler();
}

Tensor scaled_sum(const nn::AddedLosses& added, optim::LossScaler* scaler) {
  if (added.empty()) return {};
  return scaler == nullptr ? added.sum() : scaler->scale(added.sum());
}

Tensor total_loss(const Training& training, nn::Module& model, const Tensor& outputs, const Tensor& targets,
                  const nn::AddedLosses& added, optim::LossScaler* scaler, StepLosses* kept) {
  const Tensor loss = loss_of(training.loss, model, outputs, targets), sum = scaled_sum(added, scaler);
  const Tensor total = sum.defined() ? loss + sum : loss;
  if (kept == nullptr) return total;
  kept->clear();
  kept->add("loss", loss);
  for (const auto& [name, tensor] : added.all()) kept->add(name, tensor);
  kept->add("total_loss", total);
  return total;
}

}  // namespace lockstep::train
