#include "src/autograd/engine/window.h"

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

struct Axis {
  std::int64_t out, before, after;
};

Axis same(std::int64_t in, std::int64_t window, std::int64_t stride) {
  const std::int64_t out = (in + stride - 1) / stride;
  const std::int64_t total = std::max<std::int64_t>((out - 1) * stride + window - in, 0);
  return {out, total / 2, total - total / 2};
}

}  // namespace

WindowGeometry place_window(const char* operation, Size2 in, Size2 window, Size2 stride, const PaddingRule& rule) {
  for (const int axis : {0, 1})
    if (window[axis] < 1 || stride[axis] < 1)
      throw InvalidArgument("{}: window {} x {} and stride {} x {} must be positive", operation, window[0], window[1],
                            stride[0], stride[1]);
  if (std::holds_alternative<Same>(rule)) {
    const Axis height = same(in[0], window[0], stride[0]), width = same(in[1], window[1], stride[1]);
    return {height.out, width.out, {height.before, width.before, height.after, width.after}};
  }
  const Padding& padding = std::get<Padding>(rule);
  if (padding.top < 0 || padding.left < 0 || padding.bottom < 0 || padding.right < 0)
    throw InvalidArgument("{}: padding top {}, left {}, bottom {}, right {} must not be negative", operation,
                          padding.top, padding.left, padding.bottom, padding.right);
  const std::int64_t height = in[0] + padding.top + padding.bottom, width = in[1] + padding.left + padding.right;
  if (height < window[0] || width < window[1])
    throw InvalidArgument("{}: the window {} x {} does not fit the padded image {} x {}", operation, window[0],
                          window[1], height, width);
  return {(height - window[0]) / stride[0] + 1, (width - window[1]) / stride[1] + 1, padding};
}

Tensor with_height(const Tensor& x) {
  const Shape& s = x.shape();
  return reshape(x, {s[0], 1, s[1], s[2]});
}

Tensor without_height(const Tensor& y) {
  const Shape& s = y.shape();
  return reshape(y, {s[0], s[2], s[3]});
}

PaddingRule with_height(const PaddingRule1d& rule) {
  if (std::holds_alternative<Same>(rule)) return Same{};
  const Padding1d& padding = std::get<Padding1d>(rule);
  return Padding{0, padding.left, 0, padding.right};
}

}  // namespace lockstep
