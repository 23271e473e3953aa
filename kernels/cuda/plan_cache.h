// Plans, which a library has prepared for calls of one shape, by key. The number of plans is bounded, so that a program whose
// shapes vary does not fill the memory with them.
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <map>
#include <utility>

namespace lockstep::cuda {

// For one thread, and for plans that no queued work needs any more: graphs of cuDNN are in cudnn_graph.h. A reference
// to a plan is valid until the next add().
template <typename Key, typename Plan> class PlanCache {
 public:
  explicit PlanCache(std::size_t most_plans) : most_plans_(most_plans) {}

  // Null: the key is unknown. The plan becomes the most recently used one.
  Plan* find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    plans_.splice(plans_.begin(), plans_, found->second);
    return &plans_.front().second;
  }

  // Adds a plan for a key that is unknown, and drops the least recently used one if there are too many then.
  Plan& add(const Key& key, Plan plan) {
    plans_.emplace_front(key, std::move(plan));
    places_.emplace(key, plans_.begin());
    if (plans_.size() > most_plans_) {
      places_.erase(plans_.back().first);
      plans_.pop_back();
    }
    return plans_.front().second;
  }

  std::size_t size() const { return plans_.size(); }

 private:
  using Plans = std::list<std::pair<Key, Plan>>;

  const std::size_t most_plans_;
  Plans plans_;  // the most recently used one first
  std::map<Key, typename Plans::iterator> places_;
};

}  // namespace lockstep::cuda
