// The strategies, a file each; strategies.cpp lists them.
#pragma once

#include <memory>
#include <string>

#include "lockstep/train/strategy.h"
#include "lockstep/train/strategy_scope.h"

namespace lockstep::train {

// `options.devices` and `options.parameter_device` are set where the strategy has a use for them.
std::unique_ptr<Strategy> make_ddp(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_zero(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_local_sgd(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_mirrored(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_data_parallel(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_towers(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_parameter_server(Training training,
                                                const StrategyOptions& options);  // a server or a worker

std::unique_ptr<Strategy> make_model_parallel(Training training, const StrategyOptions& options);

// Throws InvalidArgument where the thread's default group has several ranks: each would train by itself. `call` begins
// the message, `what` drives all devices, and `way_out` says what helps beside one process, ddp, and a `.group` of this
// rank alone.
void check_is_no_rank(const char* call, const std::string& what, const char* way_out = "");

// Of a StrategyChoice: with the devices of a strategy of one process. Throws InvalidArgument for an unknown name, and
// for options that such a strategy has no use for.
StrategyOptions options_of_choice(const std::string& name, const StrategyOptions& options);
// Of a call in a scope: throws InvalidArgument, which begins with the call, for another strategy's name and for options
// beside the scope's.
void check_is_of_scope(const StrategyChoice& scope, const char* call, const std::string& name,
                       const StrategyOptions& options);

}  // namespace lockstep::train
