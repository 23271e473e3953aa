// Convolution (cross-correlation): y[n,i,j,o] = bias[o] + sum over (r,s,c) of
// x[n, i*stride - pad + r*dilation, j*stride - pad + s*dilation, first + c] * weight[o,r,s,c], zeros outside the image,
// where first is the first channel of o's group.
#include <vector>

#include "kernels/cpu/reference/reference.h"

namespace lockstep::reference {

namespace {

Index x_at(const Conv2dShape& shape, Index n, Index row, Index column) {
  return ((n * shape.in_height + row) * shape.in_width + column) * shape.in_channels;
}
Index y_at(const Conv2dShape& shape, Index n, Index row, Index column) {
  return ((n * shape.out_height + row) * shape.out_width + column) * shape.out_channels;
}
Index weight_at(const Conv2dShape& shape, Index out, Index r, Index s) {
  return ((out * shape.kernel_height + r) * shape.kernel_width + s) * shape.group_channels();
}
// For each output channel, the first input channel that it reads.
std::vector<Index> first_channels(const Conv2dShape& shape) {
  std::vector<Index> first;
  for (Index out = 0; out < shape.out_channels; ++out)
    first.push_back(out / shape.group_filters() * shape.group_channels());
  return first;
}

// Calls visit(r, s, row, column) for each kernel position whose input pixel lies inside the image.
template <typename Visit> void for_each_tap(const Conv2dShape& shape, Index out_row, Index out_column, Visit&& visit) {
  for (Index r = 0; r < shape.kernel_height; ++r) {
    const Index row = out_row * shape.stride_height - shape.pad_top + r * shape.dilation_height;
    if (row < 0 || row >= shape.in_height) continue;
    for (Index s = 0; s < shape.kernel_width; ++s) {
      const Index column = out_column * shape.stride_width - shape.pad_left + s * shape.dilation_width;
      if (column >= 0 && column < shape.in_width) visit(r, s, row, column);
    }
  }
}

template <typename Visit> void for_each_output(const Conv2dShape& shape, Visit&& visit) {
  for (Index n = 0; n < shape.batch; ++n)
    for (Index i = 0; i < shape.out_height; ++i)
      for (Index j = 0; j < shape.out_width; ++j) visit(n, i, j);
}

void conv2d(const Conv2dShape& shape, In in, In weights, In bias, bool relu, Out out, Stream&) {
  const float *x = in.floats(), *weight = weights.floats();
  float* const y = out.floats();
  const Index channels = shape.group_channels();
  const std::vector<Index> first = first_channels(shape);
  for_each_output(shape, [&](Index n, Index i, Index j) {
    for (Index o = 0; o < shape.out_channels; ++o) {
      double sum = bias ? bias.floats()[o] : 0;
      for_each_tap(shape, i, j, [&](Index r, Index s, Index row, Index column) {
        const float* pixel = x + x_at(shape, n, row, column) + first[o];
        const float* taps = weight + weight_at(shape, o, r, s);
        for (Index c = 0; c < channels; ++c) sum += static_cast<double>(pixel[c]) * taps[c];
      });
      const auto value = static_cast<float>(sum);
      y[y_at(shape, n, i, j) + o] = relu ? clamp_at_zero(value) : value;
    }
  });
}

void conv2d_backward_data(const Conv2dShape& shape, In out_grad, In weights, Out x_grad, Stream&) {
  const float *y_grad = out_grad.floats(), *weight = weights.floats();
  std::vector<double> sums(shape.batch * shape.in_height * shape.in_width * shape.in_channels);
  const Index channels = shape.group_channels(), filter = weight_at(shape, 1, 0, 0);
  const std::vector<Index> first = first_channels(shape);
  for_each_output(shape, [&](Index n, Index i, Index j) {
    const float* const grads = y_grad + y_at(shape, n, i, j);
    for_each_tap(shape, i, j, [&](Index r, Index s, Index row, Index column) {
      double* const all = sums.data() + x_at(shape, n, row, column);
      const float* taps = weight + weight_at(shape, 0, r, s);
      for (Index o = 0; o < shape.out_channels; ++o, taps += filter) {
        double* const pixel = all + first[o];
        const double grad = grads[o];
        for (Index c = 0; c < channels; ++c) pixel[c] += grad * taps[c];
      }
    });
  });
  for (std::size_t i = 0; i < sums.size(); ++i) store(x_grad.floats()[i], sums[i], x_grad.accumulate);
}

void conv2d_backward_weights(const Conv2dShape& shape, In in, In out_grad, Out weight_grad, Out bias_grad,
                             Stream& stream) {
  const float *x = in.floats(), *y_grad = out_grad.floats();
  std::vector<double> sums(weight_grad.count());
  const Index channels = shape.group_channels(), filter = weight_at(shape, 1, 0, 0);
  const std::vector<Index> first = first_channels(shape);
  for_each_output(shape, [&](Index n, Index i, Index j) {
    const float* const grads = y_grad + y_at(shape, n, i, j);
    for_each_tap(shape, i, j, [&](Index r, Index s, Index row, Index column) {
      const float* const all = x + x_at(shape, n, row, column);
      double* taps = sums.data() + weight_at(shape, 0, r, s);
      for (Index o = 0; o < shape.out_channels; ++o, taps += filter) {
        const float* const pixel = all + first[o];
        const double grad = grads[o];
        for (Index c = 0; c < channels; ++c) taps[c] += grad * pixel[c];
      }
    });
  });
  for (std::size_t i = 0; i < sums.size(); ++i) store(weight_grad.floats()[i], sums[i], weight_grad.accumulate);
  if (bias_grad) bias_backward(out_grad, bias_grad, stream);
}

}  // namespace

void use_conv2d(KernelTable& table) {
  table.conv2d = any_float<conv2d>;
  table.conv2d_backward_data = any_float<conv2d_backward_data>;
  table.conv2d_backward_weights = any_float<conv2d_backward_weights>;
}

}  // namespace lockstep::reference
