// Answers the question of the texts on parameter servers: as communication takes time, may 8 GPUs in one machine be as
// fast as 16 on several?
#pragma once

#include "bench/lib/strategy_model.h"

namespace lockstep::bench {

inline constexpr const char* kCaution = "a report of a model, not a promise";

struct StrategyQuestion {
  StrategyAssumptions assumed;  // of `few` GPUs
  Link local, net;
  int few = 8, many = 16;  // GPUs in one machine, and on several
  bool is_weak = true;     // more GPUs train more samples a step; otherwise each trains fewer
};

// The assumptions for `gpus` GPUs.
StrategyAssumptions assumptions_for(const StrategyQuestion& question, int gpus);

// Prints a row for each strategy and number of machines that divides `many`, the assumptions, and the answers: as a
// table for people, or as JSON lines. Throws InvalidArgument if no number of machines above 1 divides `many`, or if
// there are not more GPUs on several machines than in one.
void report_strategies(const StrategyQuestion& question, bool json);

}  // namespace lockstep::bench
