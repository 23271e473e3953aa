#include "lockstep/autograd/upsample.h"

#include <cmath>
#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/indexing.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/engine/window.h"

namespace lockstep {

namespace {

class ResampleNode : public Node {
 public:
  ResampleNode(std::vector<Tensor> inputs, const char* name, const Resample2dShape& shape)
      : Node(std::move(inputs)), name_(name), shape_(shape) {}
  const char* name() const override { return name_; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"rule", static_cast<std::int64_t>(shape_.rule)},
                      {"scale_height", double{shape_.scale_height}},
                      {"scale_width", double{shape_.scale_width}}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).resample2d_backward(shape_, result_grad, targets[0], stream_of(result_grad));
  }

 private:
  const char* name_;
  Resample2dShape shape_;
};

Tensor resample(const char* name, const Tensor& x, const Resample2dShape& shape) {
  const Tensor y = empty_like(x, {shape.batch, shape.out_height, shape.out_width, shape.channels});
  kernels_of(x).resample2d(shape, x, y, stream_of(x));
  record<ResampleNode>(y, {x}, name, shape);
  return y;
}

void check_pixels(const char* name, const Shape& x, Size2 size) {
  if (x[1] < 1 || x[2] < 1) throw InvalidArgument("{}: x {} has no pixels", name, x.text());
  if (size[0] < 1 || size[1] < 1)
    throw InvalidArgument("{}: the result must have at least 1 x 1 pixels, got {} x {}", name, size[0], size[1]);
}

Size2 size_of_result(const Shape& x, const UpsampleOptions& options) {
  const bool has_size = options.size != Size2{}, has_scale = options.scale.height != 0 || options.scale.width != 0;
  if (has_size == has_scale)
    throw InvalidArgument("upsample: expected either a size or a scale, got {}", has_size ? "both" : "none");
  if (has_size) return options.size;
  const auto scaled = [](std::int64_t extent, double scale) {
    if (!(scale > 0) || !std::isfinite(scale))
      throw InvalidArgument("upsample: the scale must be positive and finite, got {}", scale);
    return static_cast<std::int64_t>(std::floor(static_cast<double>(extent) * scale));
  };
  return {scaled(x[1], options.scale.height), scaled(x[2], options.scale.width)};
}

// Inputs per output in one direction. PyTorch divides by a given scale, even where it was rounded.
float inputs_per_output(std::int64_t in, std::int64_t out, double scale, ResampleRule rule) {
  if (rule == ResampleRule::kLinearCorners)
    return out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0F;
  return scale > 0 ? static_cast<float>(1 / scale) : static_cast<float>(in) / static_cast<float>(out);
}

Tensor adaptive_average(const char* name, const Tensor& x, Size2 size) {
  const Shape& in = x.shape();
  check_pixels(name, in, size);
  if (in[1] % size[0] == 0 && in[2] % size[1] == 0) return avg_pool2d(x, {in[1] / size[0], in[2] / size[1]});
  return resample(name, x, {in[0], in[1], in[2], in[3], size[0], size[1], 0, 0, ResampleRule::kMean});
}

// x with the rows or columns of all windows, one after the other. A window that is shorter than the longest one repeats
// its last row, which changes no maximum and receives no gradient. Returns x itself if it is cut evenly.
Tensor with_equal_windows(const Tensor& x, int dim, std::int64_t windows, std::int64_t& length) {
  const std::int64_t extent = x.shape()[static_cast<std::size_t>(dim)];
  if (extent % windows == 0) {
    length = extent / windows;
    return x;
  }
  const auto begin = [&](std::int64_t window) { return window * extent / windows; };
  const auto end = [&](std::int64_t window) { return ((window + 1) * extent + windows - 1) / windows; };
  length = 0;
  for (std::int64_t window = 0; window < windows; ++window) length = std::max(length, end(window) - begin(window));
  std::vector<std::int64_t> places;
  for (std::int64_t window = 0; window < windows; ++window)
    for (std::int64_t i = 0; i < length; ++i) places.push_back(std::min(begin(window) + i, end(window) - 1));
  return index_select(x, dim, Tensor::from(std::span<const std::int64_t>(places), {windows * length}, x.device()));
}

Tensor adaptive_maximum(const char* name, const Tensor& x, Size2 size) {
  check_pixels(name, x.shape(), size);
  Size2 window;
  const Tensor rows = with_equal_windows(x, 1, size[0], window[0]);
  return max_pool2d(with_equal_windows(rows, 2, size[1], window[1]), window);
}

}  // namespace

Tensor upsample(const Tensor& x, const UpsampleOptions& options) {
  check_activation("upsample", "x (N, H, W, C)", x, 4);
  if (options.align_corners && options.mode != UpsampleMode::kBilinear)
    throw InvalidArgument("upsample: align_corners is for the bilinear mode");
  const Shape& in = x.shape();
  const Size2 size = size_of_result(in, options);
  check_pixels("upsample", in, size);
  const ResampleRule rule = options.mode == UpsampleMode::kNearest ? ResampleRule::kNearest
                            : options.align_corners                ? ResampleRule::kLinearCorners
                                                                   : ResampleRule::kLinear;
  return resample(
      "upsample", x,
      {in[0], in[1], in[2], in[3], size[0], size[1], inputs_per_output(in[1], size[0], options.scale.height, rule),
       inputs_per_output(in[2], size[1], options.scale.width, rule), rule});
}

Tensor adaptive_avg_pool2d(const Tensor& x, Size2 size) {
  check_activation("adaptive_avg_pool2d", "x (N, H, W, C)", x, 4);
  return adaptive_average("adaptive_avg_pool2d", x, size);
}

Tensor adaptive_max_pool2d(const Tensor& x, Size2 size) {
  check_activation("adaptive_max_pool2d", "x (N, H, W, C)", x, 4);
  return adaptive_maximum("adaptive_max_pool2d", x, size);
}

Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t size) {
  check_activation("adaptive_avg_pool1d", "x (N, L, C)", x, 3);
  return without_height(adaptive_average("adaptive_avg_pool1d", with_height(x), {1, size}));
}

Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t size) {
  check_activation("adaptive_max_pool1d", "x (N, L, C)", x, 3);
  return without_height(adaptive_maximum("adaptive_max_pool1d", with_height(x), {1, size}));
}

}  // namespace lockstep
