// Which options a strategy takes.
#pragma once

#include <string>
#include <vector>

#include "lockstep/train/strategy.h"
#include "lockstep/train/strategy_scope.h"

namespace lockstep::train {

// Whether make_strategy() with these options is a call of all ranks.
bool is_collective(const StrategyKind& kind, const StrategyOptions& options);

// The options as given, with .devices set for a strategy of one process, and .parameter_device if it has one. Throws
// InvalidArgument for options that the strategy does not take.
StrategyOptions checked_options(const StrategyKind& kind, const StrategyOptions& given);

// Throws InvalidArgument if the thread's default group has several ranks: each would train by itself. `call` begins
// the message, `what` is what drives all devices, and `way_out` is a remedy next to those for all strategies.
void check_is_no_rank(const char* call, const std::string& what, const char* way_out = "");

// Throws InvalidArgument for a null pointer and for a device that comes twice. `call` begins the message.
void check_devices(const std::string& call, const std::vector<Device*>& devices);

// For a StrategyChoice: checks the options of a strategy of one process, and returns them with its devices. Options of
// other strategies are returned as they are: make_strategy() checks them on all ranks.
StrategyOptions options_of_choice(const std::string& name, const StrategyOptions& options);

// For a call in a scope: throws InvalidArgument, which begins with the call, for another strategy's name and for
// options in addition to the scope's.
void check_is_of_scope(const StrategyChoice& scope, const char* call, const std::string& name,
                       const StrategyOptions& options);

}  // namespace lockstep::train
