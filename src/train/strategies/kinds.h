// The strategies: kinds.cpp has the table, and each has a file or a room with its name.
#pragma once

#include <memory>
#include <string>

#include "lockstep/train/strategies.h"
#include "lockstep/train/strategy.h"

namespace lockstep::train {

// Each is called with options that checked_options() has returned.
std::unique_ptr<Strategy> make_ddp(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_mirrored(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_data_parallel(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_towers(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_model_parallel(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_parameter_server(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_zero(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_local_sgd(Training training, const StrategyOptions& options);

struct StrategyRow {
  StrategyKind kind;
  std::unique_ptr<Strategy> (*make)(Training training, const StrategyOptions& options);
};

// Null for a name that is not in the table.
const StrategyRow* find_strategy(const std::string& name);
// "ddp, zero and local_sgd": the strategies that have the capability.
std::string names_of_strategies_with(bool StrategyCapabilities::*capability);

}  // namespace lockstep::train
