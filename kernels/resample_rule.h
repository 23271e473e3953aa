// Which inputs an output of resample2d reads in one direction, and with which weights. The CPU's kernels and those of
// GPUs share these formulas; positions are computed in float32, as in PyTorch, so that all devices choose the same
// pixels.
#pragma once

#include <cstdint>

#include "kernels/always_inline.h"
#include "lockstep/core/operator_shapes.h"

namespace lockstep {

// The inputs [begin, end) of an output. The first one has the weight `first`, each of the others `later`.
struct ResampleTaps {
  std::int64_t begin, end;
  float first, later;

  LOCKSTEP_FORMULA float weight_of(std::int64_t input) const { return input == begin ? first : later; }
};

// One direction, rows or columns.
struct ResampleAxis {
  std::int64_t in, out;
  float scale;
  ResampleRule rule;

  LOCKSTEP_FORMULA ResampleTaps taps_of(std::int64_t output) const {
    if (rule == ResampleRule::kMean) {
      const std::int64_t begin = output * in / out, end = ((output + 1) * in + out - 1) / out;
      const float share = 1.0F / static_cast<float>(end - begin);
      return {begin, end, share, share};
    }
    const auto place = static_cast<float>(output);
    if (rule == ResampleRule::kNearest) {
      const auto nearest = static_cast<std::int64_t>(place * scale);
      const std::int64_t begin = nearest < in ? nearest : in - 1;
      return {begin, begin + 1, 1, 0};
    }
    const float centre = rule == ResampleRule::kLinear ? (place + 0.5F) * scale - 0.5F : place * scale;
    const float at = centre < 0 ? 0 : centre;
    const auto below = static_cast<std::int64_t>(at);
    if (below >= in - 1) return {in - 1, in, 1, 0};
    const float distance = at - static_cast<float>(below);
    return {below, below + 2, 1 - distance, distance};
  }

  // The outputs [first, end) that may read an input: begin and end of the taps never decrease from one output to the
  // next.
  struct Readers {
    std::int64_t first, end;
  };
  LOCKSTEP_FORMULA Readers readers_of(std::int64_t input) const {
    std::int64_t low = 0, high = out;  // the first output whose taps end behind the input
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (taps_of(middle).end > input)
        high = middle;
      else
        low = middle + 1;
    }
    std::int64_t end = low;
    while (end < out && taps_of(end).begin <= input) ++end;
    return {low, end};
  }
};

inline ResampleAxis rows_of(const Resample2dShape& s) { return {s.in_height, s.out_height, s.scale_height, s.rule}; }
inline ResampleAxis columns_of(const Resample2dShape& s) { return {s.in_width, s.out_width, s.scale_width, s.rule}; }

}  // namespace lockstep
