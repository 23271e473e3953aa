// Average pooling: y = sum of the window's pixels inside the image / divisor; a pixel's gradient is the sum of y_grad /
// divisor over the windows that contain it.
#include <vector>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

// Calls visit(index of the output's pixel, indices of the image's pixels, divisor) for each window.
template <typename Visit> void for_each_window(const Pool2dShape& s, bool count_padding, Visit&& visit) {
  Index out = 0;
  std::vector<Index> pixels;
  for (Index n = 0; n < s.batch; ++n)
    for (Index i = 0; i < s.out_height; ++i)
      for (Index j = 0; j < s.out_width; ++j, ++out) {
        pixels.clear();
        for (Index r = 0; r < s.window_height; ++r)
          for (Index c = 0; c < s.window_width; ++c) {
            const Index row = i * s.stride_height - s.pad_top + r, column = j * s.stride_width - s.pad_left + c;
            if (row >= 0 && row < s.in_height && column >= 0 && column < s.in_width)
              pixels.push_back((n * s.in_height + row) * s.in_width + column);
          }
        visit(
            out, pixels,
            static_cast<double>(count_padding ? s.window_height * s.window_width : static_cast<Index>(pixels.size())));
      }
}

void avg_pool2d(const Pool2dShape& s, bool count_padding, In x, Out y, Stream&) {
  for_each_window(s, count_padding, [&](Index out, const std::vector<Index>& pixels, double divisor) {
    for (Index c = 0; c < s.channels; ++c) {
      double sum = 0;
      for (const Index pixel : pixels) sum += x.floats()[pixel * s.channels + c];
      y.floats()[out * s.channels + c] = static_cast<float>(sum / divisor);
    }
  });
}

void avg_pool2d_backward(const Pool2dShape& s, bool count_padding, In y_grad, Out x_grad, Stream&) {
  std::vector<double> sums(static_cast<std::size_t>(x_grad.count()));
  for_each_window(s, count_padding, [&](Index out, const std::vector<Index>& pixels, double divisor) {
    for (Index c = 0; c < s.channels; ++c)
      for (const Index pixel : pixels)
        sums[static_cast<std::size_t>(pixel * s.channels + c)] += y_grad.floats()[out * s.channels + c] / divisor;
  });
  for (std::size_t i = 0; i < sums.size(); ++i) store(x_grad.floats()[i], sums[i], x_grad.accumulate);
}

}  // namespace

void use_avg_pool(KernelTable& table) {
  table.avg_pool2d = any_float<avg_pool2d>;
  table.avg_pool2d_backward = any_float<avg_pool2d_backward>;
}

}  // namespace lockstep::reference
