#include "lockstep/core/baked_numbers.h"

#include <algorithm>
#include <utility>

namespace lockstep {

namespace {
thread_local BakedNumbers* listener = nullptr;
}

BakedNumbers::BakedNumbers() : outer_(std::exchange(listener, this)) {}
BakedNumbers::~BakedNumbers() { listener = outer_; }

void BakedNumbers::note(std::function<double()> now) {
  if (listener == nullptr) return;
  const double value = now();
  listener->numbers_.push_back({std::move(now), value});
}

bool still_hold(const std::vector<BakedNumbers::Number>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](const BakedNumbers::Number& number) { return number.now() == number.noted; });
}

}  // namespace lockstep
