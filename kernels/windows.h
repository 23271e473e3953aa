// The geometry of pooling windows in one direction.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep {

// The taps of the window of output `out` that lie inside the image.
struct Taps {
  std::int64_t first, end;  // within the window
  std::int64_t input;       // position of the first tap in the image
};

inline Taps taps_inside(std::int64_t out, std::int64_t stride, std::int64_t pad, std::int64_t window,
                        std::int64_t size) {
  const std::int64_t start = out * stride - pad;
  const std::int64_t first = std::max<std::int64_t>(0, -start);
  return {first, std::min(window, size - start), start + first};
}

// The outputs whose windows contain input `in`: [first, end).
struct Cover {
  std::int64_t first, end;
};

inline Cover windows_over(std::int64_t in, std::int64_t stride, std::int64_t pad, std::int64_t window,
                          std::int64_t outputs) {
  const std::int64_t reach = in + pad - window;  // a window that starts here or before ends before `in`
  return {reach < 0 ? 0 : reach / stride + 1, std::min(outputs, (in + pad) / stride + 1)};
}

// The window of one output pixel of a channels-last image: `rows` x `columns` taps, beginning with the pixel x, which
// is the tap `place`.
struct PoolWindow {
  const float* x;
  std::int64_t rows, columns, row_step, channels;
  int place, width;
};

// The `rows` x `columns` windows that contain one input pixel. It is the tap `place` of the first one; in the window to
// the right its tap is `place_column` lower, in the window below `place_row` lower.
struct PoolCover {
  const float* y_grad;
  const std::uint16_t* argmax;
  std::int64_t rows, columns, row_step, channels;
  int place, place_row, place_column;
};

}  // namespace lockstep
