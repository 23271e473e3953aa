// model_parallel with a rank for each stage.
#pragma once

#include <memory>

#include "lockstep/train/strategy.h"

namespace lockstep::train {

// Collective over options.group, of which rank r is stage r.
std::unique_ptr<Strategy> make_model_parallel_ranks(Training training, const StrategyOptions& options);

}  // namespace lockstep::train
