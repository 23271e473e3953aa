// A map from tensors, by identity, to values. A lookup takes constant time, while comparing with is_same() takes linear
// time.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <utility>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

template <typename Value> class TensorMap {
 public:
  // Returns false, and changes nothing, if the tensor is in the map.
  bool emplace(const Tensor& tensor, Value value) {
    if (find(tensor) != nullptr) return false;
    by_memory_.emplace(tensor.buffer().data(), std::pair(tensor, std::move(value)));
    return true;
  }
  // Null if it is not in the map.
  const Value* find(const Tensor& tensor) const {
    const auto [first, last] = by_memory_.equal_range(tensor.buffer().data());
    for (auto at = first; at != last; ++at)
      if (at->second.first.is_same(tensor)) return &at->second.second;
    return nullptr;
  }
  bool empty() const { return by_memory_.empty(); }

 private:
  std::unordered_multimap<const std::byte*, std::pair<Tensor, Value>>
      by_memory_;  // views of the same memory are different tensors
};

}  // namespace lockstep
