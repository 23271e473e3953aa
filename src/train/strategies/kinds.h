// The strategies, a file each; strategies.cpp lists them.
#pragma once

#include <memory>

#include "lockstep/train/strategy.h"

namespace lockstep::train {

// `options.devices` and `options.parameter_device` are set where the strategy has a use for them.
std::unique_ptr<Strategy> make_ddp(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_zero(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_local_sgd(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_mirrored(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_data_parallel(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_towers(Training training, const StrategyOptions& options);
std::unique_ptr<Strategy> make_parameter_server(Training training, const StrategyOptions& options);  // a server or a worker

std::unique_ptr<Strategy> make_model_parallel(Training training, const StrategyOptions& options);

}  // namespace lockstep::train
