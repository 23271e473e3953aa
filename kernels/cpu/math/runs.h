// Runs of an operand's elements as float32, for kernels that cut their work themselves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/math/any_float.h"

namespace lockstep {

// Memory for float32 copies of the parts of one operand.
class WideFloats {
 public:
  float* floats(std::int64_t count) {
    if (count > count_) memory_ = cpu_device().allocate(static_cast<std::size_t>(count) * sizeof(float));
    count_ = std::max(count, count_);
    return reinterpret_cast<float*>(memory_.data());
  }

 private:
  Buffer memory_;
  std::int64_t count_ = 0;
};

// Elements that a kernel reads: where they are, or widened.
class ReadRuns {
 public:
  explicit ReadRuns(In view) : view_(view), floats_(is_half(view.dtype) ? nullptr : view.floats()) {}
  const float* at(std::int64_t first, std::int64_t count) {
    if (floats_ != nullptr) return floats_ + first;
    float* const to = memory_.floats(count);
    widen(view_.dtype, static_cast<const std::uint16_t*>(view_.data) + first, to, count);
    return to;
  }

 private:
  const InputView view_;
  const float* const floats_;
  WideFloats memory_;
};
// The values of a run are those of the output only if it accumulates. finish() rounds the run and stores it.
class WriteRuns {
 public:
  explicit WriteRuns(Out view) : view_(view), floats_(is_half(view.dtype) ? nullptr : view.floats()) {}
  float* at(std::int64_t first, std::int64_t count) {
    if (floats_ != nullptr) return floats_ + first;
    count_ = count, halves_ = static_cast<std::uint16_t*>(view_.data) + first;
    float* const to = memory_.floats(count);
    if (view_.accumulate) widen(view_.dtype, halves_, to, count);
    return to;
  }
  void finish() {
    if (floats_ == nullptr) narrow(view_.dtype, memory_.floats(count_), halves_, count_);
  }

 private:
  const OutputView view_;
  float* const floats_;
  std::uint16_t* halves_ = nullptr;
  std::int64_t count_ = 0;
  WideFloats memory_;
};

}  // namespace lockstep
