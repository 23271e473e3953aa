// The layers that are timed: those of the tutorial network, on images of 24 x 24.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cases/shapes.h"

namespace lockstep::testing {

// The layers that are timed, with their names in tables.
template <typename LayerShape> struct Layer {
  std::string name;
  LayerShape shape;
};

inline std::vector<Layer<Conv2dShape>> convolution_layers(std::int64_t batch) {
  return {{"conv1", conv2d_shape(batch, 24, 24, 3, 64, 5, 5, 1, 1, {2, 2, 2, 2})},
          {"conv2", conv2d_shape(batch, 12, 12, 64, 64, 5, 5, 1, 1, {2, 2, 2, 2})},
          {"depthwise 3x3", in_groups(128, conv2d_shape(batch, 14, 14, 128, 128, 3, 3, 1, 1, {1, 1, 1, 1}))},
          {"32 groups 3x3", in_groups(32, conv2d_shape(batch, 14, 14, 128, 128, 3, 3, 1, 1, {1, 1, 1, 1}))}};
}

inline std::vector<Layer<Pool2dShape>> pooling_layers(std::int64_t batch) {
  return {{"pool1", {batch, 24, 24, 64, 12, 12, 3, 3, 2, 2, 1, 1, 1, 1}},
          {"pool2", {batch, 12, 12, 64, 6, 6, 3, 3, 2, 2, 1, 1, 1, 1}}};
}

// The first one, a product of two square matrices, is large: its rate is the limit of computation.
inline std::vector<Layer<LinearShape>> linear_layers(std::int64_t batch, std::int64_t side) {
  return {{fmt::format("linear {}", side), {side, side, side}},
          {"local3", {batch, 2304, 384}},
          {"local4", {batch, 384, 192}},
          {"logits", {batch, 192, 10}},
          {"mlp layer, batch 64", {64, 2048, 2048}}};
}

}  // namespace lockstep::testing
