// An image is processed in bands of rows, which are copied and padded with zeros, 16 channels to a plane: so all
// windows lie inside, and data that is read repeatedly is contiguous and in the second-level cache. The gradient of the
// input is a convolution of the output's gradient with the reversed kernel, with filters and channels exchanged.
#include "kernels/cpu/grouped_conv.h"

#include <algorithm>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "src/core/process/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/grouped_conv_avx512.h"
#endif

namespace lockstep::grouped_conv {

#if defined(__x86_64__)

namespace {

constexpr Index kBandFloats = 48 * 1024;  // size of a band, which shares the second-level cache with streamed data
// Parts of a sum over all images; their number depends only on its size.
constexpr Index kImagesOfAPart = 8, kMostParts = 8;

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

Buffer allocate(Index count) { return cpu_device().allocate(static_cast<std::size_t>(count) * sizeof(float)); }

int group_of(const Conv2dShape& s) { return static_cast<int>(s.group_channels()); }
Index weight_count(const Conv2dShape& s) { return s.out_channels * s.kernel_height * kTaps * s.group_channels(); }

// Calls visit(index in the kernel's order OHWI, index in planes of 16 filters (rows, group, kTaps, 16)) for all
// weights.
template <typename Visit> void for_each_weight(const Conv2dShape& s, Visit&& visit) {
  const Index group = s.group_channels(), rows = s.kernel_height;
  for (Index o = 0; o < s.out_channels; ++o)
    for (Index row = 0; row < rows; ++row)
      for (Index tap = 0; tap < kTaps; ++tap)
        for (Index j = 0; j < group; ++j)
          visit(((o * rows + row) * kTaps + tap) * group + j,
                (((o / kLanes * rows + row) * group + j) * kTaps + tap) * kLanes + o % kLanes);
}

void order_weights(const Conv2dShape& s, const float* weight, float* to) {
  for_each_weight(s, [&](Index from, Index place) { to[place] = weight[from]; });
}

// The weights for the gradient of the input: lanes are channels, and j is a filter of their group.
void reverse_weights(const Conv2dShape& s, const float* weight, float* to) {
  const Index group = s.group_channels(), rows = s.kernel_height;
  for (Index c = 0; c < s.in_channels; ++c)
    for (Index row = 0; row < rows; ++row)
      for (Index tap = 0; tap < kTaps; ++tap)
        for (Index j = 0; j < group; ++j)
          to[(((c / kLanes * rows + row) * group + j) * kTaps + tap) * kLanes + c % kLanes] =
              weight[(((c / group * group + j) * rows + rows - 1 - row) * kTaps + kTaps - 1 - tap) * group + c % group];
}

// The images that are read, and the outputs whose windows lie in them.
struct Geometry {
  Index height, width, channels, pad_top, pad_left, out_height, out_width, kernel_height;
  int group;

  Index image() const { return height * width * channels; }
  Index out_image() const { return out_height * out_width * channels; }
};

Geometry forward_of(const Conv2dShape& s) {
  return {s.in_height,  s.in_width,  s.in_channels,   s.pad_top,  s.pad_left,
          s.out_height, s.out_width, s.kernel_height, group_of(s)};
}
Geometry backward_of(const Conv2dShape& s) {
  return {s.out_height,
          s.out_width,
          s.in_channels,
          s.kernel_height - 1 - s.pad_top,
          kTaps - 1 - s.pad_left,
          s.in_height,
          s.in_width,
          s.kernel_height,
          group_of(s)};
}

// The copy of a band.
class Band {
 public:
  explicit Band(const Geometry& g)
      : geometry_(g),
        row_((g.out_width + kTaps - 1) * kLanes),
        outputs_(std::clamp<Index>(kBandFloats / (row_ * g.channels / kLanes) - g.kernel_height + 1, 1, g.out_height)),
        plane_((outputs_ + g.kernel_height - 1) * row_ +
               5 * kLanes),  // padded, so that planes are not a multiple of a page apart
        memory_(allocate(plane_ * g.channels / kLanes)) {
    std::fill_n(floats(memory_), plane_ * g.channels / kLanes, 0.0F);
  }

  Index outputs() const { return outputs_; }  // rows, at most
  Index row() const { return row_; }
  const float* plane(Index n) const { return floats(memory_) + n * plane_; }

  // Copies the windows of output rows [first, end).
  void copy(const float* image, Index first, Index end) {
    const Geometry& g = geometry_;
    const Index columns = std::clamp<Index>(g.out_width + kTaps - 1 - g.pad_left, 0, g.width);
    float* to = floats(memory_) + g.pad_left * kLanes;
    for (Index row = first - g.pad_top; row < end + g.kernel_height - 1 - g.pad_top; ++row, to += row_)
      copy_pixels(row >= 0 && row < g.height ? image + row * g.width * g.channels : nullptr, columns, g.channels, to,
                  plane_);
  }

 private:
  Geometry geometry_;
  Index row_, outputs_, plane_;
  Buffer memory_;
};

// Outputs [first, end) of one image.
void convolve_band(const Geometry& g, const Band& band, const float* weights, const Finish& finish, Index first,
                   Index end, float* y) {
  const Index tiles = (g.out_width + kMostOutputs - 1) / kMostOutputs,
              plane_weights = g.kernel_height * g.group * kTaps * kLanes;
  for (Index c = 0; c < g.channels; c += kLanes, weights += plane_weights) {
    const Finish of_plane{finish.bias == nullptr ? nullptr : finish.bias + c, finish.relu, finish.accumulate};
    for (Index row = first; row < end; ++row)
      for (Index tile = 0; tile < tiles; ++tile) {
        const Index column = g.out_width * tile / tiles, next = g.out_width * (tile + 1) / tiles;
        const float* const x = band.plane(c / kLanes) + (row - first) * band.row() + column * kLanes;
        kConvolve[next - column - 1](x, band.row(), g.kernel_height, g.group, weights, of_plane,
                                     y + (row * g.out_width + column) * g.channels + c, g.channels);
      }
  }
}

void convolve_images(const Geometry& g, Index batch, const float* x, const float* weights, const Finish& finish,
                     float* y) {
  const Index parts = std::min<Index>(batch, compute_threads());
  in_parallel(parts, [&](Index part) {
    Band band(g);
    for (Index n = batch * part / parts; n < batch * (part + 1) / parts; ++n)
      for (Index first = 0; first < g.out_height; first += band.outputs()) {
        const Index end = std::min(g.out_height, first + band.outputs());
        band.copy(x + n * g.image(), first, end);
        convolve_band(g, band, weights, finish, first, end, y + n * g.out_image());
      }
  });
}

// Adds the products of output rows [first, end) of one image.
void add_band(const Geometry& g, const Band& band, const float* y_grad, Index first, Index end, float* sums) {
  for (Index c = 0; c < g.channels; c += kLanes)
    for (Index row = 0; row < g.kernel_height; ++row)
      for (int j = 0; j < g.group; j += std::min(g.group, 4)) {
        const auto add = g.group == 2 ? add_products<2> : add_products<4>;
        add({band.plane(c / kLanes) + row * band.row(), y_grad + first * g.out_width * g.channels + c, g.out_width,
             g.channels},
            band.row(), g.out_width * g.channels, end - first, g.group, j, sums);
        sums += std::min(g.group, 4) * kTaps * kLanes;
      }
}

}  // namespace

bool suits(const Conv2dShape& s) {
  const Index group = s.group_channels();
  return cpu_isa() >= Isa::kAvx512 && s.in_channels == s.out_channels && s.in_channels % kLanes == 0 &&
         (group == 2 || group == 4 || group == 8) && s.kernel_width == kTaps && s.stride_height == 1 &&
         s.stride_width == 1 && s.pad_top >= 0 && s.pad_top < s.kernel_height && s.pad_left >= 0 &&
         s.pad_left < kTaps && s.batch * s.in_height * s.in_width * s.out_height * s.out_width > 0;
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Buffer weights = allocate(weight_count(s));
  order_weights(s, weight, floats(weights));
  convolve_images(forward_of(s), s.batch, x, floats(weights), {bias, relu, false}, y);
}

void conv2d_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  const Buffer weights = allocate(weight_count(s));
  reverse_weights(s, weight, floats(weights));
  convolve_images(backward_of(s), s.batch, y_grad, floats(weights), {nullptr, false, accumulate}, x_grad);
}

void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate) {
  const Geometry g = forward_of(s);
  const Index parts = std::clamp<Index>(s.batch / kImagesOfAPart, 1, kMostParts);
  const Buffer total = allocate(weight_count(s));
  sum_of_parts(parts, weight_count(s), floats(total), [&](Index part, float* to) {
    Band band(g);
    std::fill_n(to, weight_count(s), 0.0F);
    for (Index n = s.batch * part / parts; n < s.batch * (part + 1) / parts; ++n)
      for (Index first = 0; first < g.out_height; first += band.outputs()) {
        const Index end = std::min(g.out_height, first + band.outputs());
        band.copy(x + n * g.image(), first, end);
        add_band(g, band, y_grad + n * g.out_image(), first, end, to);
      }
  });
  for_each_weight(s, [&](Index to, Index place) {
    weight_grad[to] = accumulate ? weight_grad[to] + floats(total)[place] : floats(total)[place];
  });
}

#else

bool suits(const Conv2dShape&) { return false; }

void conv2d(const Conv2dShape&, const float*, const float*, const float*, bool, float*) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}
void conv2d_backward_data(const Conv2dShape&, const float*, const float*, float*, bool) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}
void conv2d_backward_weights(const Conv2dShape&, const float*, const float*, float*, bool) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}

#endif

}  // namespace lockstep::grouped_conv
