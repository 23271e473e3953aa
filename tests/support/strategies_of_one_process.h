// The strategies that drive all their devices from one process: a new one takes part in the tests that go through
// these.
#pragma once

#include <string>
#include <vector>

#include "lockstep/train/strategies.h"

namespace lockstep::testing {

enum class Stages { kNone, kToo };  // kToo: also strategies that cut the model into stages

inline std::vector<std::string> strategies_of_one_process(Stages stages = Stages::kNone) {
  std::vector<std::string> names;
  for (const train::StrategyKind& kind : train::strategies()) {
    if (kind.capabilities.has_ranks || (kind.capabilities.has_stages && stages == Stages::kNone)) continue;
    names.emplace_back(kind.name);
  }
  return names;
}

}  // namespace lockstep::testing
