#include "src/optim/live_optimizers.h"

#include <atomic>
#include <mutex>

namespace lockstep::optim {

namespace {

struct Live {
  std::mutex mutex;
  std::vector<const Optimizer*> optimizers;
  std::atomic<std::uint64_t> generation{1};
};

Live& live() {
  static Live& all = *new Live;  // never destroyed, because static optimizers may be destroyed later
  return all;
}

}  // namespace

void LiveOptimizers::add(Optimizer& optimizer) {
  const std::lock_guard lock(live().mutex);
  live().optimizers.push_back(&optimizer);
  ++live().generation;
}

void LiveOptimizers::remove(const Optimizer& optimizer) {
  const std::lock_guard lock(live().mutex);
  std::erase(live().optimizers, &optimizer);
  ++live().generation;
}

void LiveOptimizers::change(const std::function<void()>& change) {
  const std::lock_guard lock(live().mutex);
  change();
  ++live().generation;
}

std::uint64_t LiveOptimizers::generation() { return live().generation; }

std::vector<LiveOptimizers::Found> LiveOptimizers::of(const std::unordered_set<const void*>& parameters) {
  const std::lock_guard lock(live().mutex);
  std::vector<Found> found;
  for (const Optimizer* optimizer : live().optimizers)
    for (std::size_t g = 0; g < optimizer->groups_.size(); ++g) {
      const Optimizer::Group& group = optimizer->groups_[g];
      for (std::size_t i = group.begin; i < group.end; ++i) {
        if (parameters.count(optimizer->parameters_[i].tensor.autograd_meta()) == 0) continue;
        found.push_back({optimizer, g});
        break;
      }
    }
  return found;
}

}  // namespace lockstep::optim
