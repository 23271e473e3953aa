// Convolution (cross-correlation): y[n,i,j,o] = bias[o] + sum over (r,s,c) of
// x[n, i*stride - pad + r, j*stride - pad + s, c] * weight[o,r,s,c], zeros outside the image.
#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

Index x_at(const Conv2dShape& shape, Index n, Index row, Index column) {
  return ((n * shape.in_height + row) * shape.in_width + column) * shape.in_channels;
}
Index y_at(const Conv2dShape& shape, Index n, Index row, Index column) {
  return ((n * shape.out_height + row) * shape.out_width + column) * shape.out_channels;
}
Index weight_at(const Conv2dShape& shape, Index out, Index r, Index s) {
  return ((out * shape.kernel_height + r) * shape.kernel_width + s) * shape.in_channels;
}

// Calls visit(r, s, row, column) for each kernel place whose input pixel lies inside the image.
template <typename Visit>
void for_each_tap(const Conv2dShape& shape, Index out_row, Index out_column, Visit&& visit) {
  for (Index r = 0; r < shape.kernel_height; ++r) {
    const Index row = out_row * shape.stride_height - shape.pad_top + r;
    if (row < 0 || row >= shape.in_height) continue;
    for (Index s = 0; s < shape.kernel_width; ++s) {
      const Index column = out_column * shape.stride_width - shape.pad_left + s;
      if (column >= 0 && column < shape.in_width) visit(r, s, row, column);
    }
  }
}

template <typename Visit>
void for_each_output(const Conv2dShape& shape, Visit&& visit) {
  for (Index n = 0; n < shape.batch; ++n)
    for (Index i = 0; i < shape.out_height; ++i)
      for (Index j = 0; j < shape.out_width; ++j) visit(n, i, j);
}

}  // namespace

void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&) {
  for_each_output(shape, [&](Index n, Index i, Index j) {
    for (Index o = 0; o < shape.out_channels; ++o) {
      double sum = bias == nullptr ? 0 : bias[o];
      for_each_tap(shape, i, j, [&](Index r, Index s, Index row, Index column) {
        const float* pixel = x + x_at(shape, n, row, column);
        const float* taps = weight + weight_at(shape, o, r, s);
        for (Index c = 0; c < shape.in_channels; ++c) sum += static_cast<double>(pixel[c]) * taps[c];
      });
      const auto value = static_cast<float>(sum);
      y[y_at(shape, n, i, j) + o] = relu ? clamp_at_zero(value) : value;
    }
  });
}

void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&) {
  std::vector<double> sums(shape.batch * shape.in_height * shape.in_width * shape.in_channels);
  for_each_output(shape, [&](Index n, Index i, Index j) {
    for_each_tap(shape, i, j, [&](Index r, Index s, Index row, Index column) {
      double* pixel = sums.data() + x_at(shape, n, row, column);
      for (Index o = 0; o < shape.out_channels; ++o) {
        const double grad = y_grad[y_at(shape, n, i, j) + o];
        const float* taps = weight + weight_at(shape, o, r, s);
        for (Index c = 0; c < shape.in_channels; ++c) pixel[c] += grad * taps[c];
      }
    });
  });
  for (std::size_t i = 0; i < sums.size(); ++i) store(x_grad[i], sums[i], accumulate);
}

void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  std::vector<double> sums(shape.out_channels * shape.kernel_height * shape.kernel_width * shape.in_channels);
  for_each_output(shape, [&](Index n, Index i, Index j) {
    for_each_tap(shape, i, j, [&](Index r, Index s, Index row, Index column) {
      const float* pixel = x + x_at(shape, n, row, column);
      for (Index o = 0; o < shape.out_channels; ++o) {
        const double grad = y_grad[y_at(shape, n, i, j) + o];
        double* taps = sums.data() + weight_at(shape, o, r, s);
        for (Index c = 0; c < shape.in_channels; ++c) taps[c] += grad * pixel[c];
      }
    });
  });
  for (std::size_t i = 0; i < sums.size(); ++i) store(weight_grad[i], sums[i], accumulate_weight);
  if (bias_grad != nullptr)
    bias_backward(y_grad, bias_grad, shape.batch * shape.out_height * shape.out_width, shape.out_channels, accumulate_bias, stream);
}

}  // namespace lockstep::reference
