#include "lockstep/autograd/conv3d.h"

#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/convolution.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/engine/window.h"

namespace lockstep {

namespace {

void check_volumes(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv3dOptions& options) {
  const Shape &in = x.shape(), &filters = weight.shape();
  const std::int64_t groups = options.groups;
  if (groups < 1 || in[4] % groups != 0 || filters[0] % groups != 0 || filters[4] * groups != in[4])
    throw InvalidArgument("conv3d: {} {} does not match the {} channels of x {} in {} groups",
                          name_argument("weight", weight), filters.text(), in[4], in.text(), groups);
  if (options.dilation.depth < 1 || options.dilation.height < 1 || options.dilation.width < 1)
    throw InvalidArgument("conv3d: the dilation must be positive, got {} x {} x {}", options.dilation.depth,
                          options.dilation.height, options.dilation.width);
  if (!bias.defined()) return;
  check_input("conv3d", "bias (O)", bias, 1, &x.device());
  if (bias.count() != filters[0])
    throw InvalidArgument("conv3d: {} {} does not match {} {}", name_argument("bias", bias), bias.shape().text(),
                          name_argument("weight", weight), filters.text());
}

std::int64_t reach(std::int64_t kernel, std::int64_t dilation) { return (kernel - 1) * dilation + 1; }

// (N, D', H, W, groups * KD * C / groups): for each group the channels of the planes that a filter reads.
Tensor planes_as_channels(const Tensor& x, std::int64_t kernel, std::int64_t depth, const Conv3dOptions& options) {
  const std::int64_t zeros = options.padding.depth, seen = x.shape()[4] / options.groups;
  const Tensor padded = zeros == 0 ? x : pad(x, {{0, 0}, {zeros, zeros}, {0, 0}, {0, 0}, {0, 0}});
  std::vector<Tensor> parts;
  for (std::int64_t group = 0; group < options.groups; ++group)
    for (std::int64_t tap = 0; tap < kernel; ++tap) {
      const std::int64_t first = tap * options.dilation.depth;
      const Range planes{first, first + (depth - 1) * options.stride.depth + 1, options.stride.depth};
      parts.push_back(slice(padded, {{}, planes, {}, {}, {group * seen, (group + 1) * seen}}));
    }
  return parts.size() == 1 ? parts.front() : concat(parts, 4);
}

}  // namespace

Tensor conv3d(const Tensor& input, const Tensor& weight, const Tensor& bias, const Conv3dOptions& options) {
  check_activation("conv3d", "x (N, D, H, W, C)", input, 5);
  const Tensor x = autocast(input);
  check_input("conv3d", "weight (O, KD, KH, KW, C)", weight, 5, &x.device());
  check_volumes(x, weight, bias, options);
  const Shape &in = x.shape(), &filters = weight.shape();
  const Size3 &stride = options.stride, &padding = options.padding, &dilation = options.dilation;
  const Size2 window{reach(filters[2], dilation.height), reach(filters[3], dilation.width)};
  place_window("conv3d", {in[2], in[3]}, window, stride.image(), Padding{padding.height, padding.width});
  const std::int64_t depth = place_window("conv3d", {in[1], 1}, {reach(filters[1], dilation.depth), 1},
                                          {stride.depth, 1}, Padding{padding.depth, 0})
                                 .out_height;

  const Tensor images = planes_as_channels(x, filters[1], depth, options);
  const Tensor flat_weight =
      reshape(permute(weight, {0, 2, 3, 1, 4}), {filters[0], filters[2], filters[3], filters[1] * filters[4]});
  const Tensor y = conv2d(reshape(images, {in[0] * depth, in[2], in[3], images.shape()[4]}), flat_weight, bias,
                          {.stride = stride.image(),
                           .padding = Padding{padding.height, padding.width},
                           .activation = options.activation,
                           .groups = options.groups,
                           .dilation = dilation.image()});
  return reshape(y, {in[0], depth, y.shape()[1], y.shape()[2], filters[0]});
}

}  // namespace lockstep
