// The registry of this process's optimizers, in which a wrapper finds those of its parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_set>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

// Ranks may be threads of one process. Any thread may call these functions unless their comment restricts it.
class LiveOptimizers {
 public:
  static void add(Optimizer& optimizer);
  static void remove(const Optimizer& optimizer);
  // Changes an optimizer's groups while no other thread reads them.
  static void change(const std::function<void()>& change);

  // Changes whenever an optimizer is added, removed or changed.
  static std::uint64_t generation();

  // A group that has at least one of the given parameters.
  struct Found {
    const Optimizer* optimizer;
    std::size_t group;
  };
  // Returns them in the order in which the optimizers were made. Parameters are identified by their autograd_meta().
  static std::vector<Found> of(const std::unordered_set<const void*>& parameters);

  // Only for the optimizer's own thread.
  static std::uint32_t begun(const Optimizer& optimizer) { return optimizer.begun_; }
  static std::uint32_t steps(const Optimizer& optimizer) { return optimizer.steps_; }
};

}  // namespace lockstep::optim
