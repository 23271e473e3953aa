// Common parts of pooling kernels: positions of elements, and the windows that contain them.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace lockstep::cuda {

// The position of an index of an NHWC tensor.
struct Position {
  Index image, row, column, channel;
};
__device__ inline Position position_of(Index i, Index height, Index width, Index channels) {
  const Index channel = i % channels;
  i /= channels;
  const Index column = i % width;
  i /= width;
  return {i / height, i % height, column, channel};
}

// The first output whose window contains input `at` (counted from the padding).
__device__ inline Index first_window(Index at, Index window, Index stride) {
  return at < window ? 0 : (at - window) / stride + 1;
}

}  // namespace lockstep::cuda
