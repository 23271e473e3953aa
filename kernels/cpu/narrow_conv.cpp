// The images are processed one by one. The taps of one row of the kernel, with all input channels, are consecutive
// floats that begin at the window's corner. The products of a few of these floats and up to 64 output channels are
// summed in registers over all pixels of the image, whose gradients stay in the second-level cache meanwhile. The image
// is first copied and padded with zeros, so that all windows lie inside.
#include "kernels/cpu/narrow_conv.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/fast.h"
#include "lockstep/core/error.h"
#include "src/core/process/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/product_avx512.h"
#endif

namespace lockstep::narrow_conv {

#if defined(__x86_64__)

namespace {

using avx512::kLanes;
using Index = std::int64_t;

constexpr Index kMostChannels = 8;
// Parts of a sum over all images; their number depends only on its size.
constexpr Index kImagesOfAPart = 8, kMostParts = 8;

// An image with zeros around it.
struct Padded {
  Index height, width, row;  // `row`: floats in a row

  explicit Padded(const Conv2dShape& s)
      : height((s.out_height - 1) * s.stride_height + s.kernel_height),
        width((s.out_width - 1) * s.stride_width + s.kernel_width),
        row(width * s.in_channels) {}
  Index count() const { return height * row; }
};

Index run_of(const Conv2dShape& s) { return s.kernel_width * s.in_channels; }
Index taps_of(const Conv2dShape& s) { return s.kernel_height * run_of(s); }

void copy_image(const Conv2dShape& s, const Padded& padded, const float* x, float* to) {
  const Index columns = std::max<Index>(0, std::min(s.in_width, padded.width - s.pad_left));
  for (Index row = 0; row < std::min(s.in_height, padded.height - s.pad_top); ++row)
    std::memcpy(to + (row + s.pad_top) * padded.row + s.pad_left * s.in_channels, x + row * s.in_width * s.in_channels,
                static_cast<std::size_t>(columns * s.in_channels) * sizeof(float));
}

// sums (kTaps, kVectors * 16; `outs` apart) += over all pixels, the kTaps floats from the window's corner on times the
// gradients.
template <int kTaps, int kVectors> LOCKSTEP_TARGET_AVX512 void add_tile(const Conv2dShape& s, const Padded& padded,
                                                                        const float* corner, const float* y_grad,
                                                                        float* sums) {
  const Index outs = s.out_channels, step = s.stride_width * s.in_channels;
  __m512 tile[kTaps][kVectors];
  for (int t = 0; t < kTaps; ++t)
    for (int v = 0; v < kVectors; ++v) tile[t][v] = _mm512_setzero_ps();
  for (Index i = 0; i < s.out_height; ++i, corner += s.stride_height * padded.row) {
    const float* x = corner;
    for (Index j = 0; j < s.out_width; ++j, x += step, y_grad += outs) {
      __m512 grad[kVectors];
      for (int v = 0; v < kVectors; ++v) grad[v] = _mm512_loadu_ps(y_grad + v * kLanes);
#pragma GCC unroll 12
      for (int t = 0; t < kTaps; ++t) {
        const __m512 factor = _mm512_set1_ps(x[t]);
        for (int v = 0; v < kVectors; ++v) tile[t][v] = _mm512_fmadd_ps(factor, grad[v], tile[t][v]);
      }
    }
  }
  for (int t = 0; t < kTaps; ++t)
    for (int v = 0; v < kVectors; ++v) {
      float* const slot = sums + t * outs + v * kLanes;
      _mm512_storeu_ps(slot, _mm512_loadu_ps(slot) + tile[t][v]);
    }
}

using AddTile = void (*)(const Conv2dShape& s, const Padded& padded, const float* corner, const float* y_grad,
                         float* sums);

// Uses as many sums as fit into the registers next to the gradients.
template <int kVectors> constexpr Index kMostTaps = kVectors == 4 ? 6 : 12;

template <int kVectors> AddTile tile_of(Index taps) {
  static constexpr AddTile kTiles[] = {add_tile<1, kVectors>, add_tile<2, kVectors>, add_tile<3, kVectors>,
                                       add_tile<4, kVectors>, add_tile<5, kVectors>, add_tile<6, kVectors>};
  if constexpr (constexpr Index kMost = kMostTaps<kVectors>; kMost > 6) {
    static constexpr AddTile kMore[] = {add_tile<7, kVectors>,  add_tile<8, kVectors>,  add_tile<9, kVectors>,
                                        add_tile<10, kVectors>, add_tile<11, kVectors>, add_tile<12, kVectors>};
    if (taps > 6) return kMore[taps - 7];
  }
  return kTiles[taps - 1];
}

// sums (taps, outs) += the products of one image. The consecutive floats are cut into tiles whose sizes differ by at
// most one.
template <int kVectors>
void add_image(const Conv2dShape& s, const Padded& padded, const float* x, const float* y_grad, float* sums) {
  const Index run = run_of(s), tiles = (run + kMostTaps<kVectors> - 1) / kMostTaps<kVectors>;
  for (Index r = 0; r < s.kernel_height; ++r)
    for (Index tile = 0; tile < tiles; ++tile) {
      const Index begin = run * tile / tiles, end = run * (tile + 1) / tiles;
      const AddTile add = tile_of<kVectors>(end - begin);
      for (Index o = 0; o < s.out_channels; o += kVectors * kLanes)
        add(s, padded, x + r * padded.row + begin, y_grad + o, sums + (r * run + begin) * s.out_channels + o);
    }
}

}  // namespace

void store_gradients(const float* sums, std::int64_t taps, std::int64_t outs, Out weight_grad, Out bias_grad) {
  const auto store = [](float* slot, float sum, bool accumulate) { *slot = accumulate ? *slot + sum : sum; };
  for (Index o = 0; o < outs; ++o) {
    for (Index tap = 0; tap < taps; ++tap)
      store(weight_grad.floats() + o * taps + tap, sums[tap * outs + o], weight_grad.accumulate);
    if (bias_grad) store(bias_grad.floats() + o, sums[taps * outs + o], bias_grad.accumulate);
  }
}

bool suits(const Conv2dShape& s) {
  return cpu_isa() >= Isa::kAvx512 && s.groups == 1 && s.in_channels > 0 && s.in_channels <= kMostChannels &&
         s.out_channels > 0 && s.out_channels % kLanes == 0 && s.pad_top >= 0 && s.pad_left >= 0 &&
         s.batch * s.out_height * s.out_width > 0;
}

void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad) {
  const Padded padded(s);
  const Index outs = s.out_channels, taps = taps_of(s), count = taps * outs, pixels = s.out_height * s.out_width;
  const auto add = outs % 64 == 0 ? add_image<4> : outs % 32 == 0 ? add_image<2> : add_image<1>;
  const Buffer buffer = cpu_device().allocate(static_cast<std::size_t>(count + outs) * sizeof(float));
  auto* const sums = reinterpret_cast<float*>(buffer.data());
  const Index parts = std::clamp<Index>(s.batch / kImagesOfAPart, 1, kMostParts);
  sum_of_parts(parts, count + outs, sums,
               [&](Index part, float* to) {  // the biases' gradients follow those of the weights
                 const Buffer image = cpu_device().allocate(static_cast<std::size_t>(padded.count()) * sizeof(float));
                 auto* const corner = reinterpret_cast<float*>(image.data());
                 std::fill_n(corner, padded.count(), 0.0F);
                 std::fill_n(to, count + outs, 0.0F);
                 for (Index n = s.batch * part / parts; n < s.batch * (part + 1) / parts; ++n) {
                   copy_image(s, padded, x + n * s.in_height * s.in_width * s.in_channels, corner);
                   add(s, padded, corner, y_grad + n * pixels * outs, to);
                   if (bias_grad) fast::add_column_sums(y_grad + n * pixels * outs, pixels, outs, to + count);
                 }
               });
  store_gradients(sums, taps, outs, weight_grad, bias_grad);
}

#else

bool suits(const Conv2dShape&) { return false; }

void conv2d_backward_weights(const Conv2dShape&, const float*, const float*, Out, Out) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}

#endif

}  // namespace lockstep::narrow_conv
