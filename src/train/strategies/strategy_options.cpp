#include "src/train/strategies/strategy_options.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

namespace {

bool is_given(const ParameterServerOptions& servers) { return servers != ParameterServerOptions(); }

void check_has_use_for(const StrategyKind& kind, const StrategyOptions& options) {
  const StrategyCapabilities& can = kind.capabilities;
  if (options.parameter_device != nullptr && !can.has_parameter_device)
    throw InvalidArgument("{}: .parameter_device is an option of {}: here every device has the parameters", kind.name,
                          names_of_strategies_with(&StrategyCapabilities::has_parameter_device));
  if (is_given(options.parameter_server) && !can.has_servers)
    throw InvalidArgument("{}: .parameter_server has options of {}: here no rank is a server", kind.name,
                          names_of_strategies_with(&StrategyCapabilities::has_servers));
  if (options.ddp && !can.has_wrapper)
    throw InvalidArgument("{}: .ddp has options of {}: there is no DistributedDataParallel here", kind.name,
                          names_of_strategies_with(&StrategyCapabilities::has_wrapper));
  if (options.ddp && options.ddp->comm_hook && can.averages_weights)
    throw InvalidArgument("{}: .ddp has a comm_hook, but this strategy sends no gradients: leave it out", kind.name);
  if (options.average_period != 0 && !can.averages_weights)
    throw InvalidArgument("{}: .average_period is an option of {}: here ranks have equal weights after each step",
                          kind.name, names_of_strategies_with(&StrategyCapabilities::averages_weights));
  if (options.average_period < 0)
    throw InvalidArgument(
        "{}: .average_period is {}; expected steps from one average of the weights to the next, or 0 for 4", kind.name,
        options.average_period);
  if ((options.micro_batches != 0 || !options.stage_layers.empty()) && !can.has_stages)
    throw InvalidArgument("{}: .micro_batches and .stage_layers are options of {}: here each device has all layers",
                          kind.name, names_of_strategies_with(&StrategyCapabilities::has_stages));
}

}  // namespace

void check_devices(const std::string& call, const std::vector<Device*>& devices) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] == nullptr) throw InvalidArgument("{}: device {} of the list is null", call, i);
    const auto end = devices.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(devices.begin(), end, devices[i]) != end)
      throw InvalidArgument("{}: {} comes twice in the list of devices; Device::configure() makes several of one", call,
                            devices[i]->name());
  }
}

bool is_collective(const StrategyKind& kind, const StrategyOptions& options) {
  return kind.capabilities.has_ranks || (kind.capabilities.has_stages && options.group);
}

StrategyOptions checked_options(const StrategyKind& kind, const StrategyOptions& given) {
  check_has_use_for(kind, given);
  if (is_collective(kind, given)) {
    if (!given.devices.empty() && !kind.capabilities.has_servers)
      throw InvalidArgument("{}: a rank computes on its group's device; .devices is for strategies with one process",
                            kind.name);
    return given;
  }
  if (given.group && given.group->world_size() > 1)
    throw InvalidArgument(
        "{}: one process drives all devices; .group has {} ranks, expected this one alone; groups of several are for "
        "{}, and for stages of {}",
        kind.name, given.group->world_size(), names_of_strategies_with(&StrategyCapabilities::has_ranks),
        names_of_strategies_with(&StrategyCapabilities::has_stages));
  StrategyOptions options = given;
  if (options.devices.empty()) options.devices = default_devices();
  check_devices(kind.name, options.devices);
  if (kind.capabilities.has_parameter_device && options.parameter_device == nullptr)
    options.parameter_device = &cpu_device();
  return options;
}

void check_is_no_rank(const char* call, const std::string& what, const char* way_out) {
  const auto job = default_process_group();
  const Place place = job ? job->place() : place_in_job();
  if (place.world_size == 1) return;
  throw InvalidArgument(
      "{}: rank {}: {} drives all devices from one process, and this job has {} ranks, each of which would train by "
      "itself: start one process, take strategy 'ddp'{}, or give a group of this rank alone, "
      ".group = group->split(group->rank())",
      call, place.rank, what, place.world_size, way_out);
}

StrategyOptions options_of_choice(const std::string& name, const StrategyOptions& options) {
  const StrategyKind& kind = strategy_named(name);
  return is_collective(kind, options) ? options : checked_options(kind, options);
}

void check_is_of_scope(const StrategyChoice& scope, const char* call, const std::string& name,
                       const StrategyOptions& options) {
  if (name != scope.name())
    throw InvalidArgument(
        "{}: strategy '{}' in the scope of '{}': one strategy has a scope at a time: leave the scope, or its name out",
        call, name, scope.name());
  if (!options.devices.empty() || options.parameter_device != nullptr || options.group || options.ddp ||
      options.micro_batches != 0 || options.average_period != 0 || !options.stage_layers.empty() ||
      is_given(options.parameter_server))
    throw InvalidArgument(
        "{}: options of a strategy in the scope of '{}', which has its own: give them to the StrategyChoice", call,
        scope.name());
}

}  // namespace lockstep::train
