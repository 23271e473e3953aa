#include "lockstep/autograd/image_padding.h"

#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"

namespace lockstep {

namespace {

// The padding of one direction.
struct Sides {
  std::int64_t before, after;
};

void check_sides(const char* name, const Sides& sides, std::int64_t extent, PaddingMode mode) {
  if (sides.before < 0 || sides.after < 0)
    throw InvalidArgument("{}: the padding must not be negative, got {} and {}", name, sides.before, sides.after);
  const std::int64_t most = std::max(sides.before, sides.after);
  if (mode == PaddingMode::kReflect && most > 0 && most >= extent)
    throw InvalidArgument("{}: a reflection of {} pixels needs an image that is larger, got {}", name, most, extent);
  if (mode == PaddingMode::kReplicate && most > 0 && extent == 0)
    throw InvalidArgument("{}: an empty image has no pixels to replicate", name);
}

// `count` copies of one slice along `dim`.
Tensor copies_of(const Tensor& x, int dim, std::int64_t at, std::int64_t count) {
  std::vector<std::int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  extents[static_cast<std::size_t>(dim)] = count;
  return broadcast_to(slice(x, dim, {at, at + 1}), Shape(std::span<const std::int64_t>(extents)));
}

Tensor padded_along(const char* name, const Tensor& x, int dim, const Sides& sides, PaddingMode mode) {
  const std::int64_t extent = x.shape()[static_cast<std::size_t>(dim)];
  check_sides(name, sides, extent, mode);
  if (sides.before == 0 && sides.after == 0) return x;
  if (mode == PaddingMode::kZeros) {
    std::vector<std::array<std::int64_t, 2>> widths(x.shape().dims(), {0, 0});
    widths[static_cast<std::size_t>(dim)] = {sides.before, sides.after};
    return pad(x, widths);
  }
  const bool reflects = mode == PaddingMode::kReflect;
  Tensors parts;
  if (sides.before > 0)
    parts.push_back(reflects ? flip(slice(x, dim, {1, sides.before + 1}), {dim}) : copies_of(x, dim, 0, sides.before));
  parts.push_back(x);
  if (sides.after > 0)
    parts.push_back(reflects ? flip(slice(x, dim, {extent - 1 - sides.after, extent - 1}), {dim})
                             : copies_of(x, dim, extent - 1, sides.after));
  return concat(parts, dim);
}

}  // namespace

Tensor pad2d(const Tensor& x, const Padding& padding, PaddingMode mode) {
  check_activation("pad2d", "x (N, H, W, C)", x, 4);
  const Tensor rows = padded_along("pad2d", x, 1, {padding.top, padding.bottom}, mode);
  return padded_along("pad2d", rows, 2, {padding.left, padding.right}, mode);
}

Tensor pad1d(const Tensor& x, const Padding1d& padding, PaddingMode mode) {
  check_activation("pad1d", "x (N, L, C)", x, 3);
  return padded_along("pad1d", x, 1, {padding.left, padding.right}, mode);
}

}  // namespace lockstep
