// Prepared primitives of oneDNN, by thread: there are no locks, and after the first step with a shape nothing is built.
#pragma once

#include <cstddef>
#include <list>

namespace lockstep::onednn {

// This thread's plan for a key: a prepared primitive with what it needs. The most recently used plans are kept, more
// than any network has layers. The key is passed by value, because GCC 14 otherwise suspects that the result points
// into a temporary.
template <typename Plan, typename Key> const Plan& recent_plan(Key key) {
  constexpr std::size_t kMost = 256;
  thread_local std::list<Plan> plans;
  for (auto plan = plans.begin(); plan != plans.end(); ++plan)
    if (plan->key == key) {
      plans.splice(plans.begin(), plans, plan);
      return plans.front();
    }
  plans.emplace_front(key);
  if (plans.size() > kMost) plans.pop_back();
  return plans.front();
}

}  // namespace lockstep::onednn
