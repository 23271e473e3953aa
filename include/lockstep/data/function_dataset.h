// A data set from a function, as a map-style data set of PyTorch without a class.
//
//   const ls::data::FunctionDataset squares(100, [](std::int64_t i) {
//     const auto x = static_cast<float>(i);
//     return ls::data::Sample{ls::data::scalar(x), ls::data::scalar(x * x)};
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/dataset.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// Sample i is get(i). The loader's threads call the function, several at the same time; it should be a pure function of
// i. map() adds random augmentation (data/combine.h).
class FunctionDataset : public Dataset {
 public:
  using Function = std::function<Sample(std::int64_t index)>;
  // Throws InvalidArgument for a negative size and for an empty function.
  FunctionDataset(std::int64_t size, Function get) : size_(size), get_(std::move(get)) {
    if (size < 0 || !get_)
      throw InvalidArgument("FunctionDataset: expected a size of 0 or more and a function, got {} and {}", size,
                            get_ ? "one" : "an empty one");
  }
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, std::int64_t) const override {
    if (index < 0 || index >= size_)
      throw InvalidArgument("FunctionDataset: sample {} does not exist; the set has {}", index, size_);
    return get_(index);
  }

 private:
  std::int64_t size_;
  Function get_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
