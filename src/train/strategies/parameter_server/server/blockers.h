// Which workers keep another one waiting.
#pragma once

#include <cstddef>
#include <vector>

#include "src/train/strategies/parameter_server/server/parameter_clients.h"

namespace lockstep::train {

struct BlockingRule {
  bool has_begun = true;    // see ParameterClients::has_begun()
  bool has_backup = false;  // a step is complete without some workers
};

// The workers, by number, without whose next message `waiting` gets no answer. Others may be silent for as long as they
// like: a worker that is a step ahead, or one that is itself waiting, blocks nobody. Before the job has begun worker 0
// alone blocks; then those that are the furthest behind, and with backup workers all that have not completed the step.
// Empty if only ps:0's decision is missing. Pure.
std::vector<std::size_t> blockers_of(std::size_t waiting, const std::vector<ParameterClient>& clients,
                                     const BlockingRule& rule);

// The smallest clock of the active workers; the largest number if there are none. Pure.
std::int64_t slowest_of(const std::vector<ParameterClient>& clients);

}  // namespace lockstep::train
