// The table of the strategies: the only file that knows which there are. All others look at capabilities.
#include "src/train/strategies/kinds.h"

#include "lockstep/core/error.h"
#include "src/core/base/message_text.h"

namespace lockstep::train {

namespace {

const std::vector<StrategyRow>& table() {
  static const std::vector<StrategyRow> kTable = {
      {{"ddp",
        "a process for each device, gradients all-reduced while backward runs",
        {.has_ranks = true, .has_wrapper = true}},
       make_ddp},
      {{"mirrored", "one process, a thread and a replica for each device, gradients all-reduced among them"},
       make_mirrored},
      {{"data_parallel",
        "one process, parameters copied from device 0 in each step, outputs and gradients gathered there"},
       make_data_parallel},
      {{"towers",
        "one process, variables on one device, a clone on each of the others",
        {.has_parameter_device = true}},
       make_towers},
      {{"model_parallel",
        "layers cut into stages on devices or ranks, micro-batches pass through them",
        {.has_stages = true}},
       make_model_parallel},
      {{"parameter_server",
        "processes that hold the parameters, and others that compute, in step or not (lockrun --ps P --workers W)",
        {.has_ranks = true, .has_servers = true}},
       make_parameter_server},
      {{"zero",
        "ddp with the optimizer's state in slices, one of each rank (ZeRO stage 1)",
        {.has_ranks = true, .has_wrapper = true, .shards_optimizer = true}},
       make_zero},
      {{"local_sgd",
        "a process for each device, which steps by itself; weights are averaged every few steps",
        {.has_ranks = true, .has_wrapper = true, .averages_weights = true}},
       make_local_sgd},
  };
  return kTable;
}

}  // namespace

const std::vector<StrategyKind>& strategies() {
  static const std::vector<StrategyKind> kKinds = [] {
    std::vector<StrategyKind> kinds;
    for (const StrategyRow& row : table()) kinds.push_back(row.kind);
    return kinds;
  }();
  return kKinds;
}

const StrategyRow* find_strategy(const std::string& name) {
  for (const StrategyRow& row : table())
    if (name == row.kind.name) return &row;
  return nullptr;
}

const StrategyKind& strategy_named(const std::string& name) {
  for (const StrategyKind& kind : strategies())
    if (name == kind.name) return kind;
  std::vector<std::string> known;
  for (const StrategyKind& kind : strategies()) known.emplace_back(kind.name);
  throw InvalidArgument("unknown strategy '{}': expected one of {}", name, joined(known, ", "));
}

std::string names_of_strategies_with(bool StrategyCapabilities::*capability) {
  std::vector<std::string> names;
  for (const StrategyKind& kind : strategies())
    if (kind.capabilities.*capability) names.emplace_back(kind.name);
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : joined(names, ", ") + " and " + last;
}

}  // namespace lockstep::train
