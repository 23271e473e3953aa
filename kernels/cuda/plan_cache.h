// Plans of library calls by key: what cuDNN or cuBLASLt has prepared for one shape. Their number is bounded, so that a
// program whose shapes vary does not fill the memory with them.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace lockstep::cuda {

// Not for several threads. A reference to a plan is valid until the next add().
template <typename Key, typename Plan> class PlanCache {
 public:
  explicit PlanCache(std::size_t most_plans) : most_plans_(most_plans) {}

  struct Entry {
    Key key;
    Plan plan;
    bool is_in_graph;  // a CUDA graph may run code that belongs to the plan, so the plan is never dropped
  };

  // Null: the key is unknown. The entry becomes the most recently used one.
  Entry* find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &entries_.front();
  }

  // Adds a plan for a key that is unknown. If there are too many then, drops the least recently used one that is in no
  // graph.
  Entry& add(const Key& key, Plan plan) {
    entries_.push_front({key, std::move(plan), false});
    places_.emplace(key, entries_.begin());
    if (entries_.size() > most_plans_) drop_one();
    return entries_.front();
  }

  std::size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<Entry>;

  void drop_one() {
    for (auto last = std::prev(entries_.end()); last != entries_.begin(); --last) {
      if (last->is_in_graph) continue;
      places_.erase(last->key);
      entries_.erase(last);
      return;
    }
  }

  const std::size_t most_plans_;
  Entries entries_;  // the most recently used one first
  std::map<Key, typename Entries::iterator> places_;
};

}  // namespace lockstep::cuda
