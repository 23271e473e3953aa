#include <algorithm>
#include <set>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/core/base/text.h"
#include "src/ddp/checks/replicas.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

namespace {

struct Entry {
  StrategyKind kind;
  bool one_process;  // drives options.devices
  bool has_parameter_device;
  bool is_pipeline;  // of stages, which ranks of a group may have instead of devices of this process
  std::unique_ptr<Strategy> (*make)(Training training, const StrategyOptions& options);
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> kEntries = {
      {{"ddp", "a process for each device, gradients all-reduced while backward runs"}, false, false, false, make_ddp},
      {{"mirrored", "one process, a thread and a replica for each device, gradients all-reduced among them"},
       true,
       false,
       false,
       make_mirrored},
      {{"data_parallel",
        "one process, parameters copied from device 0 in each step, outputs and gradients gathered there"},
       true,
       false,
       false,
       make_data_parallel},
      {{"towers", "one process, variables on one device, a clone on each of the others"},
       true,
       true,
       false,
       make_towers},
      {{"model_parallel", "layers cut into stages on devices or ranks, micro-batches pass through them"},
       true,
       false,
       true,
       make_model_parallel},
      {{kParameterServer,
        "processes that hold the parameters, and others that compute, in step or not (lockrun --ps P --workers W)"},
       false,
       false,
       false,
       make_parameter_server},
      {{"zero", "ddp with the optimizer's state in slices, one of each rank (ZeRO stage 1)"},
       false,
       false,
       false,
       make_zero},
      {{"local_sgd", "a process for each device, which steps by itself; weights are averaged every few steps"},
       false,
       false,
       false,
       make_local_sgd},
  };
  return kEntries;
}

const Entry& entry_named(const std::string& name) {
  std::vector<std::string> known;
  for (const Entry& entry : entries()) {
    if (name == entry.kind.name) return entry;
    known.push_back(entry.kind.name);
  }
  throw InvalidArgument("there is no strategy '{}': {}", name, joined(known, ", "));
}

bool is_collective(const Entry& entry, const StrategyOptions& options) {
  return !entry.one_process || (entry.is_pipeline && options.group);
}

StrategyOptions checked(const Entry& entry, const StrategyOptions& asked) {
  const char* name = entry.kind.name;
  StrategyOptions options = asked;
  if (options.parameter_device != nullptr && !entry.has_parameter_device)
    throw InvalidArgument("{}: .parameter_device is an option of towers: here every device has the parameters", name);
  const ParameterServerOptions& servers = options.parameter_server;
  const bool has_servers = entry.make == make_parameter_server;
  if (!has_servers && (servers.servers != 0 || servers.staleness != 0 || servers.sharding != Sharding::kRoundRobin))
    throw InvalidArgument("{}: .parameter_server has the options of that strategy alone", name);
  const bool is_local_sgd = entry.make == make_local_sgd;
  if (options.ddp && entry.make != make_ddp && entry.make != make_zero && !is_local_sgd)
    throw InvalidArgument("{}: .ddp has options of ddp, zero and local_sgd: there is no DistributedDataParallel here",
                          name);
  if (is_local_sgd && options.ddp && options.ddp->comm_hook)
    throw InvalidArgument("{}: .ddp has a comm_hook, and here no gradient is sent: leave it out", name);
  if (options.average_period < 0 || (options.average_period != 0 && !is_local_sgd))
    throw InvalidArgument(
        "{}: .average_period {}: of local_sgd alone, steps from one average of the weights to the next, or 0 for 4",
        name, options.average_period);
  if (!entry.is_pipeline && (options.micro_batches != 0 || !options.stage_layers.empty()))
    throw InvalidArgument(
        "{}: .micro_batches and .stage_layers are options of model_parallel: here each device has all layers", name);
  if (is_collective(entry, options)) {
    if (!options.devices.empty() && !has_servers)
      throw InvalidArgument("{}: a rank computes on its group's device; .devices is for strategies with one process",
                            name);
    return options;
  }
  if (options.group && options.group->world_size() > 1)
    throw InvalidArgument(
        "{}: one process drives all devices; .group is an option of ddp, zero, local_sgd, model_parallel and "
        "parameter_server, or here a "
        "group of this rank alone",
        name);
  if (options.devices.empty()) options.devices = default_devices();
  std::set<const Device*> seen;
  for (const Device* device : options.devices)
    if (device == nullptr || !seen.insert(device).second)
      throw InvalidArgument("{}: .devices: {}", name,
                            device == nullptr
                                ? "one of them is null"
                                : device->name() + " comes twice; Device::configure() makes several of one");
  if (entry.has_parameter_device && options.parameter_device == nullptr) options.parameter_device = &cpu_device();
  return options;
}

}  // namespace

void Strategy::serve() {
  throw InvalidArgument("{}: serve() is for a server of parameter_server, which is_server() tells: train by step()",
                        name());
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, Training training, const StrategyOptions& options) {
  const auto scope = StrategyChoice::of_thread();
  const StrategyOptions asked = scope ? scope->options() : options;
  const Entry* entry = nullptr;
  StrategyOptions chosen;
  const auto check = [&] {
    if (name.empty())
      throw InvalidArgument(
          "make_strategy: which one? Name it, or call this in the scope() of a strategy (train/strategy_scope.h)");
    entry = &entry_named(name);
    if (!training.model || !training.optimizer || !training.loss)
      throw InvalidArgument("{}: Training needs all of .model, .optimizer and .loss", name);
    if (scope) check_is_of_scope(*scope, "make_strategy", name, options);
    chosen = checked(*entry, asked);
    if (!is_collective(*entry, asked) && !asked.group)
      check_is_no_rank("make_strategy", fmt::format("strategy '{}'", name),
                       entry->is_pipeline ? ", make each rank a stage by .group = group" : "");
  };
  const auto named =
      std::find_if(entries().begin(), entries().end(), [&](const Entry& each) { return name == each.kind.name; });
  const auto group = group_of(asked, named == entries().end() || !is_collective(*named, asked));
  if (group && group->world_size() > 1) {
    const bool is_over_ranks = name == "model_parallel" && asked.group;
    check_same_on_all_ranks(*group, "make_strategy",
                            {fmt::format("strategy '{}'{}", name, is_over_ranks ? " with a .group" : "")},
                            "ask for different strategies");
    on_all_ranks(group, check);
  } else {
    check();
  }
  return entry->make(std::move(training), chosen);
}

void check_is_no_rank(const char* call, const std::string& what, const char* way_out) {
  const auto job = default_process_group();
  const Place place = job ? job->place() : place_in_job();
  if (place.world_size == 1) return;
  throw InvalidArgument(
      "{}: rank {}: {} drives all devices from one process, and this job has {} ranks, each of which would train by "
      "itself: start one "
      "process, take strategy 'ddp'{}, or give a group of this rank alone, .group = group->split(group->rank())",
      call, place.rank, what, place.world_size, way_out);
}

StrategyOptions options_of_choice(const std::string& name, const StrategyOptions& options) {
  const Entry& entry = entry_named(name);
  return is_collective(entry, options) ? options : checked(entry, options);
}

void check_is_of_scope(const StrategyChoice& scope, const char* call, const std::string& name,
                       const StrategyOptions& options) {
  if (name != scope.name())
    throw InvalidArgument(
        "{}: strategy '{}' in the scope of '{}': one strategy has a scope at a time: leave the scope, or its name out",
        call, name, scope.name());
  const ParameterServerOptions& servers = options.parameter_server;
  if (!options.devices.empty() || options.parameter_device != nullptr || options.group || options.ddp ||
      options.micro_batches != 0 || options.average_period != 0 || !options.stage_layers.empty() ||
      servers.servers != 0 || servers.staleness != 0 || servers.sharding != Sharding::kRoundRobin)
    throw InvalidArgument(
        "{}: options of a strategy in the scope of '{}', which has its own: give them to the StrategyChoice", call,
        scope.name());
}

const std::vector<StrategyKind>& strategies() {
  static const std::vector<StrategyKind> kKinds = [] {
    std::vector<StrategyKind> kinds;
    for (const Entry& entry : entries()) kinds.push_back(entry.kind);
    return kinds;
  }();
  return kKinds;
}

}  // namespace lockstep::train
