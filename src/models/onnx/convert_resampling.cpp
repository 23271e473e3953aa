#include <cmath>
#include <numeric>

#include "lockstep/core/device.h"
#include "lockstep/core/operator_shapes.h"
#include "src/models/onnx/converters.h"

namespace lockstep::onnx {

namespace {

// The matrix (out, in) whose row i averages the inputs from floor(i * in / out) to ceil((i + 1) * in / out).
std::string averages(Conversion& c, std::int64_t in, std::int64_t out) {
  std::vector<float> values(static_cast<std::size_t>(in * out), 0.0F);
  for (std::int64_t i = 0; i < out; ++i) {
    const std::int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    for (std::int64_t j = begin; j < end; ++j)
      values[static_cast<std::size_t>(i * in + j)] = 1 / static_cast<float>(end - begin);
  }
  return c.to.reshape(c.to.floats(values), {{0, in * out}}, {{0, out}, {0, in}});
}

// The factor of one direction; 0 where Resize computes it from the sizes.
float stated_scale(Conversion& c, std::int64_t in, std::int64_t out, float inputs_per_output) {
  if (inputs_per_output == static_cast<float>(in) / static_cast<float>(out)) return 0;
  const float scale = 1 / inputs_per_output;
  if (static_cast<std::int64_t>(std::floor(static_cast<float>(in) * scale)) != out)
    c.refuse("its scale gives another number of pixels in ONNX's arithmetic: give upsample() a size");
  return scale;
}

// The pixels that the kernel reads in one direction, as constants, since Resize computes places with another rounding:
// an image whose pixels have their own number, resampled.
std::string nearest(Conversion& c, const std::string& x, std::int64_t dim, std::int64_t in, std::int64_t out,
                    float scale) {
  Device& device = cpu_device();
  const Tensor numbers = Tensor::empty({1, in, 1, 1}, DType::kFloat32, device);
  const Tensor read = Tensor::empty({1, out, 1, 1}, DType::kFloat32, device);
  std::iota(numbers.data<float>(), numbers.data<float>() + in, 0.0F);
  device.kernels().resample2d({1, in, 1, 1, out, 1, scale, 1, ResampleRule::kNearest}, numbers, read,
                              device.default_stream());
  device.default_stream().synchronize();
  const GraphBuilder::Ints pixels(read.data<float>(), read.data<float>() + out);
  return c.to.add("Gather", {x, c.to.ints(pixels)}, {{"axis", dim}});
}

}  // namespace

void convert_transposed_convolution(Conversion& c) {
  const Shape& filters = c.shape(1);
  std::string weight = c.in(1);
  if (filters.dims() == 3) weight = c.to.add("Unsqueeze", {weight, c.to.ints({1})});
  std::vector<std::string> operands = {c.to.transpose(c.in(0), {0, 3, 1, 2}), c.to.transpose(weight, {0, 3, 1, 2})};
  if (c.has(2)) operands.push_back(c.in(2));
  const std::string y = c.to.add("ConvTranspose", operands,
                                 {{"strides", c.integers("stride")},
                                  {"pads", c.integers("padding")},
                                  {"output_padding", c.integers("output_padding")},
                                  {"dilations", c.integers("dilation")},
                                  {"group", c.integer("groups")}});
  c.result(c.to.transpose(y, {0, 2, 3, 1}));
}

void convert_resampling(Conversion& c) {
  const Extents in = c.extents(0), out = c.result_extents();
  const std::int64_t in_height = c.fixed(in[1]), in_width = c.fixed(in[2]);
  const std::int64_t out_height = c.fixed(out[1]), out_width = c.fixed(out[2]);
  const auto rule = static_cast<ResampleRule>(c.integer("rule"));
  if (rule == ResampleRule::kNearest) {
    const std::string rows = nearest(c, c.in(0), 1, in_height, out_height, c.number("scale_height"));
    return c.result(nearest(c, rows, 2, in_width, out_width, c.number("scale_width")));
  }
  const std::string x = c.to.transpose(c.in(0), {0, 3, 1, 2});
  std::string y;
  if (rule == ResampleRule::kMean) {
    const std::string rows = c.to.add("MatMul", {averages(c, in_height, out_height), x});
    y = c.to.add("MatMul", {rows, c.to.transpose(averages(c, in_width, out_width), {1, 0})});
  } else {
    const bool is_centred = rule == ResampleRule::kLinear;
    const GraphBuilder::AttributeList how = {
        {"mode", std::string("linear")},
        {"coordinate_transformation_mode", std::string(is_centred ? "half_pixel" : "align_corners")}};
    const float height = is_centred ? stated_scale(c, in_height, out_height, c.number("scale_height")) : 0;
    const float width = is_centred ? stated_scale(c, in_width, out_width, c.number("scale_width")) : 0;
    const auto factor = [](float scale, std::int64_t from, std::int64_t to) {
      return scale != 0 ? scale : static_cast<float>(to) / static_cast<float>(from);
    };
    if (height == 0 && width == 0)
      y = c.to.add("Resize", {x, "", "", c.to.as_shape({out[0], out[3], out[1], out[2]})}, how);
    else
      y = c.to.add(
          "Resize",
          {x, "", c.to.floats({1, 1, factor(height, in_height, out_height), factor(width, in_width, out_width)})}, how);
  }
  c.result(c.to.transpose(y, {0, 2, 3, 1}));
}

}  // namespace lockstep::onnx
