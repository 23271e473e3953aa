// The optimizers of this process. A wrapper finds those of its parameters here, which it is never given.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_set>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

// Threads may be ranks of one process: functions without a comment on threads may be called from any.
class LiveOptimizers {
 public:
  static void add(Optimizer& optimizer);
  static void remove(const Optimizer& optimizer);
  // Changes an optimizer's groups while no other thread reads them.
  static void change(const std::function<void()>& change);

  // Another number after each of these.
  static std::uint64_t generation();

  // A group that has at least one of some parameters.
  struct Found {
    const Optimizer* optimizer;
    std::size_t group;
  };
  // In the order in which the optimizers were made. The parameters are named by their autograd_meta().
  static std::vector<Found> of(const std::unordered_set<const void*>& parameters);

  // By the optimizer's own thread.
  static std::uint32_t begun(const Optimizer& optimizer) { return optimizer.begun_; }
  static std::uint32_t steps(const Optimizer& optimizer) { return optimizer.steps_; }
};

}  // namespace lockstep::optim
