#include "kernels/cpu/mixed.h"

namespace lockstep {

namespace {

using mixed::Index;

// A 16-bit operand as floats.
class Wide {
 public:
  Wide(DType type, Index count)
      : type_(type), count_(count), memory_(cpu_device().allocate(static_cast<std::size_t>(count) * sizeof(float))) {
    mixed::check_type(type);
  }
  Wide(DType type, const void* in, Index count) : Wide(type, count) { mixed::widen(type, in, data(), count); }

  float* data() const { return reinterpret_cast<float*>(memory_.data()); }
  void narrow_to(void* out) const { mixed::narrow(type_, data(), out, count_); }

 private:
  DType type_;
  Index count_;
  Buffer memory_;
};

// A result that is written, or added to what is there.
Wide result(DType type, const void* out, Index count, bool accumulate) { return accumulate ? Wide(type, out, count) : Wide(type, count); }

Index x_count(const Conv2dShape& s) { return s.batch * s.in_height * s.in_width * s.in_channels; }
Index y_count(const Conv2dShape& s) { return s.batch * s.out_height * s.out_width * s.out_channels; }
Index weight_count(const Conv2dShape& s) { return s.out_channels * s.kernel_height * s.kernel_width * s.in_channels; }
Index x_count(const Pool2dShape& s) { return s.batch * s.in_height * s.in_width * s.channels; }
Index y_count(const Pool2dShape& s) { return s.batch * s.out_height * s.out_width * s.channels; }
Index x_count(const LinearShape& s) { return s.batch * s.in_features; }
Index y_count(const LinearShape& s) { return s.batch * s.out_features; }
Index weight_count(const LinearShape& s) { return s.in_features * s.out_features; }
Index channels_of(const Conv2dShape& s) { return s.out_channels; }
Index channels_of(const LinearShape& s) { return s.out_features; }

// Every entry over the float32 operators of `kernels`.
template <const KernelTable& (*kernels)()>
struct Mixed {
  static void convert(DType from, const void* in, DType to, void* out, Index count, bool accumulate, Stream& stream) {
    const Buffer memory = cpu_device().allocate(static_cast<std::size_t>(count) * 2 * sizeof(float));
    auto* const values = reinterpret_cast<float*>(memory.data());
    mixed::widen(from, in, values, count);
    if (accumulate) {
      mixed::widen(to, out, values + count, count);
      kernels().accumulate(values, values + count, count, stream);
    }
    mixed::narrow(to, values, out, count);
  }

  static void add(DType type, const void* a, const void* b, void* out, Index count, Stream& stream) {
    const Wide x(type, a, count), y(type, b, count), sum(type, count);
    kernels().add(x.data(), y.data(), sum.data(), count, stream);
    sum.narrow_to(out);
  }
  static void scale(DType type, const void* in, float factor, void* out, Index count, bool accumulate, Stream& stream) {
    const Wide x(type, in, count), y = result(type, out, count, accumulate);
    kernels().scale(x.data(), factor, y.data(), count, accumulate, stream);
    y.narrow_to(out);
  }
  static void relu(DType type, const void* in, void* out, Index count, Stream& stream) {
    const Wide x(type, in, count);
    kernels().relu(x.data(), x.data(), count, stream);
    x.narrow_to(out);
  }
  static void relu_backward(DType type, const void* y, void* grad, Index count, Stream& stream) {
    const Wide wide_y(type, y, count), wide_grad(type, grad, count);
    kernels().relu_backward(wide_y.data(), wide_grad.data(), count, stream);
    wide_grad.narrow_to(grad);
  }

  static void bias(DType type, void* y, const void* bias, Index rows, Index channels, Stream& stream) {
    const Wide wide_y(type, y, rows * channels), wide_bias(type, bias, channels);
    kernels().bias(wide_y.data(), wide_bias.data(), rows, channels, stream);
    wide_y.narrow_to(y);
  }
  static void bias_backward(DType type, const void* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream& stream) {
    kernels().bias_backward(Wide(type, y_grad, rows * channels).data(), bias_grad, rows, channels, accumulate, stream);
  }

  // Convolutions and linear layers differ in their shapes alone.
  template <auto operation, typename Shape>
  static void forward(DType type, const Shape& s, const void* x, const void* weight, const void* bias, bool relu, void* y, Stream& stream) {
    const Wide wide_y(type, y_count(s)), wide_bias(type, bias, bias == nullptr ? 0 : channels_of(s));
    (kernels().*operation)(s, Wide(type, x, x_count(s)).data(), Wide(type, weight, weight_count(s)).data(),
                           bias == nullptr ? nullptr : wide_bias.data(), relu, wide_y.data(), stream);
    wide_y.narrow_to(y);
  }
  template <auto operation, typename Shape>
  static void backward_data(DType type, const Shape& s, const void* y_grad, const void* weight, void* x_grad, bool accumulate,
                            Stream& stream) {
    const Wide wide_x = result(type, x_grad, x_count(s), accumulate);
    (kernels().*operation)(s, Wide(type, y_grad, y_count(s)).data(), Wide(type, weight, weight_count(s)).data(), wide_x.data(), accumulate,
                           stream);
    wide_x.narrow_to(x_grad);
  }
  template <auto operation, typename Shape>
  static void backward_weights(DType type, const Shape& s, const void* x, const void* y_grad, float* weight_grad, float* bias_grad,
                               bool accumulate_weight, bool accumulate_bias, Stream& stream) {
    (kernels().*operation)(s, Wide(type, x, x_count(s)).data(), Wide(type, y_grad, y_count(s)).data(), weight_grad, bias_grad,
                           accumulate_weight, accumulate_bias, stream);
  }

  static void max_pool2d(DType type, const Pool2dShape& s, const void* x, void* y, std::uint16_t* argmax, Stream& stream) {
    const Wide wide_y(type, y_count(s));
    kernels().max_pool2d(s, Wide(type, x, x_count(s)).data(), wide_y.data(), argmax, stream);
    wide_y.narrow_to(y);
  }
  static void max_pool2d_backward(DType type, const Pool2dShape& s, const void* y_grad, const std::uint16_t* argmax, void* x_grad,
                                  bool accumulate, Stream& stream) {
    const Wide wide_x = result(type, x_grad, x_count(s), accumulate);
    kernels().max_pool2d_backward(s, Wide(type, y_grad, y_count(s)).data(), argmax, wide_x.data(), accumulate, stream);
    wide_x.narrow_to(x_grad);
  }

  static void lrn(DType type, const LrnParams& params, const void* x, void* y, float* scale, Stream& stream) {
    const Index count = params.rows * params.channels;
    const Wide wide_y(type, count);
    kernels().lrn(params, Wide(type, x, count).data(), wide_y.data(), scale, stream);
    wide_y.narrow_to(y);
  }
  static void lrn_backward(DType type, const LrnParams& params, const void* x, const void* y, const float* scale, const void* y_grad,
                           void* x_grad, bool accumulate, Stream& stream) {
    const Index count = params.rows * params.channels;
    const Wide wide_x_grad = result(type, x_grad, count, accumulate);
    kernels().lrn_backward(params, Wide(type, x, count).data(), Wide(type, y, count).data(), scale, Wide(type, y_grad, count).data(),
                           wide_x_grad.data(), accumulate, stream);
    wide_x_grad.narrow_to(x_grad);
  }

  static MixedKernelTable table() {
    return {
        .convert = convert,
        .add = add,
        .scale = scale,
        .relu = relu,
        .relu_backward = relu_backward,
        .bias = bias,
        .bias_backward = bias_backward,
        .conv2d = forward<&KernelTable::conv2d, Conv2dShape>,
        .conv2d_backward_data = backward_data<&KernelTable::conv2d_backward_data, Conv2dShape>,
        .conv2d_backward_weights = backward_weights<&KernelTable::conv2d_backward_weights, Conv2dShape>,
        .max_pool2d = max_pool2d,
        .max_pool2d_backward = max_pool2d_backward,
        .lrn = lrn,
        .lrn_backward = lrn_backward,
        .linear = forward<&KernelTable::linear, LinearShape>,
        .linear_backward_data = backward_data<&KernelTable::linear_backward_data, LinearShape>,
        .linear_backward_weights = backward_weights<&KernelTable::linear_backward_weights, LinearShape>,
    };
  }
};

const KernelTable& cpu_kernels() { return cpu_device().kernels(); }

}  // namespace

MixedKernelTable reference_mixed_kernels() { return Mixed<reference_kernels>::table(); }
MixedKernelTable cpu_mixed_kernels() { return Mixed<cpu_kernels>::table(); }

}  // namespace lockstep
