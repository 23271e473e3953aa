// The list of strategies, and what each of them can do: for programs whose user chooses a strategy by name.
//
//   const train::StrategyKind& kind = train::strategy_named(flags.strategy);
//   if (!kind.capabilities.has_ranks) Device::configure({.cpu = 2});  // this process drives both
#pragma once

#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::train {

struct StrategyCapabilities {
  // One process for each device: make_strategy() is collective in .group, and step() takes this rank's part of the
  // samples. Without ranks, one process drives all of .devices, and step() takes all samples.
  bool has_ranks = false;
  // Some of the ranks hold the parameters and make no steps; .parameter_server has options (train/parameter_server.h).
  bool has_servers = false;
  // Each device has some of the layers; .micro_batches and .stage_layers are its options. With a .group each rank is a
  // stage, make_strategy() is collective, and step() takes all samples on all ranks.
  bool has_stages = false;
  bool has_parameter_device = false;  // the variables are on .parameter_device, apart from the devices that compute
  bool has_wrapper = false;           // the model is wrapped in a DistributedDataParallel, which .ddp configures
  // No gradient is sent: ranks have different weights until the next average; .average_period is its option.
  bool averages_weights = false;
  bool shards_optimizer = false;  // each rank has 1/n of the optimizer's state, so that all ranks must save and load it
};

struct StrategyKind {
  const char* name;
  const char* summary;  // a line, for --help
  StrategyCapabilities capabilities = {};
};

// All strategies. The first one, ddp, is the one that a Trainer takes if none is named.
const std::vector<StrategyKind>& strategies();

// Throws InvalidArgument, which lists all names, for a name that is not in the list.
const StrategyKind& strategy_named(const std::string& name);

}  // namespace lockstep::train
#pragma GCC visibility pop
