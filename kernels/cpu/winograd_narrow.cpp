// Vectors run along the output channels: weights are reordered to (tap, in, out), and to (out / 16, point, in, 16) or
// (point, in, out). A tile's inputs are one vector per point, whose lanes are the few input channels.
#include "kernels/cpu/winograd_narrow.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/core/process/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/narrow_conv.h"
#include "kernels/cpu/winograd_tiles.h"

namespace lockstep::winograd_narrow {

namespace {

using avx512::kLanes;
using winograd::Images;
using winograd::Index;
using winograd::Scratch;
using winograd::Zeros;
using F = winograd::Form<5>;  // for 3x3 kernels direct sums are as fast
using Tiling = winograd::Tiling<F>;

constexpr Index kMostChannels = 4;
constexpr Index kTilesAtOnce = 2;  // tiles that share each load of a weight
// Parts of a sum over all tiles; their number depends only on its size.
constexpr Index kPartsAtMost = 8, kTilesOfOnePart = 384;

// The points of one tile, whose square begins at (row, column) of image n: kLanes floats each, point_step apart.
LOCKSTEP_TARGET_AVX512 void transform_tile(const Images<const float>& images, Index n, Index row, Index column,
                                           float* points, Index point_step) {
  constexpr Index kPoints = F::kPoints;
  const auto lanes = static_cast<__mmask16>((1U << images.channels) - 1);
  const bool is_inside = images.has(row, column) && images.has(row + kPoints - 1, column + kPoints - 1);
  __m512 half[kPoints * kPoints];  // (column, point)
  for (Index j = 0; j < kPoints; ++j) {
    __m512 values[kPoints];
    for (Index i = 0; i < kPoints; ++i)
      values[i] = is_inside || images.has(row + i, column + j)
                      ? _mm512_maskz_loadu_ps(lanes, images.pixel(n, row + i, column + j))
                      : _mm512_setzero_ps();
    F::Inputs::apply(values, 1, half + j * kPoints);
  }
  for (Index i = 0; i < kPoints; ++i) {
    __m512 values[kPoints];
    F::Inputs::apply(half + i, kPoints, values);
    for (Index j = 0; j < kPoints; ++j) _mm512_storeu_ps(points + (i * kPoints + j) * point_step, values[j]);
  }
}

// Reorders weights (out, tap, in) to (tap, in, out), and those to (out / kLanes, point, in, kLanes).
void turn_weights(const Conv2dShape& s, const float* weight, float* turned) {
  const Index rest = s.kernel_height * s.kernel_width * s.in_channels;
  for (Index o = 0; o < s.out_channels; ++o)
    for (Index i = 0; i < rest; ++i) turned[i * s.out_channels + o] = weight[o * rest + i];
}
LOCKSTEP_TARGET_AVX512 void transform_turned_weights(const float* turned, Index ins, Index outs, float* points) {
  for (Index place = 0; place < ins * outs; place += kLanes) {  // (in, out)
    const Index c = place / outs, vector = place % outs / kLanes;
    winograd::transform_square<F::Kernels, F::kKernel, F::kPoints>(
        turned + place, ins * outs, points + (vector * F::kAll * ins + c) * kLanes, ins * kLanes);
  }
}

// The outputs of kTilesAtOnce tiles; `inputs` (tile, point, kLanes) holds their points.
template <int kIns> LOCKSTEP_TARGET_AVX512 void convolve_tiles(const float* inputs, const float* weights, Index outs,
                                                               float* const (*pixels)[F::kOut * F::kOut],
                                                               const winograd::Finish& finish) {
  constexpr Index kPoints = F::kPoints, kOut = F::kOut;
  for (Index o = 0; o < outs; o += kLanes, weights += F::kAll * kIns * kLanes) {
    __m512 half[kTilesAtOnce][kPoints * kOut];  // (column, output)
    for (Index j = 0; j < kPoints; ++j) {
      __m512 column[kTilesAtOnce][kPoints];
#pragma GCC unroll 8
      for (Index i = 0; i < kPoints; ++i) {
        const Index point = i * kPoints + j;
        __m512 sums[kTilesAtOnce] = {};
#pragma GCC unroll 4
        for (int c = 0; c < kIns; ++c) {
          const __m512 weight = _mm512_loadu_ps(weights + (point * kIns + c) * kLanes);
#pragma GCC unroll 2
          for (Index t = 0; t < kTilesAtOnce; ++t)
            sums[t] = _mm512_fmadd_ps(_mm512_set1_ps(inputs[(t * F::kAll + point) * kLanes + c]), weight, sums[t]);
        }
#pragma GCC unroll 2
        for (Index t = 0; t < kTilesAtOnce; ++t) column[t][i] = sums[t];
      }
#pragma GCC unroll 2
      for (Index t = 0; t < kTilesAtOnce; ++t) F::Outputs::apply(column[t], 1, half[t] + j * kOut);
    }
    for (Index t = 0; t < kTilesAtOnce; ++t) winograd::store_outputs<F>(half[t], finish, o, pixels[t]);
  }
}

// Transforms (point, in, out) to (tap, in, out).
LOCKSTEP_TARGET_AVX512 void gather_turned_weights(const float* points, Index ins, Index outs, float* turned) {
  for (Index place = 0; place < ins * outs; place += kLanes)
    winograd::transform_square<F::KernelGradients, F::kPoints, F::kKernel>(points + place, ins * outs, turned + place,
                                                                           ins * outs);
}

// sums (outs) += those of each tile's gradients, which equal the value of their polynomial at 1.
void add_tile_sums(const float* gradients, Index tiles, Index outs, float* sums) {
  const float* const of_one = gradients + (F::kPoints + 1) * F::plane(outs);
  for (Index tile = 0; tile < tiles; ++tile)
    for (Index o = 0; o < outs; ++o) sums[o] += of_one[tile * outs + o];
}

// The gradients of a part of the tiles, blocks [begin, end): of the weights (tap, in, out), followed by those of the
// biases.
void part_of_gradients(const Conv2dShape& s, const Tiling& tiling, const float* x, const float* y_grad, Index begin,
                       Index end, float* to) {
  const Index ins = s.in_channels, outs = s.out_channels;
  const Scratch inputs(F::points(kLanes)), gradients(F::points(outs)), points(F::kAll * ins * outs);
  const Zeros zeros(outs);
  float* const biases = to + F::kKernel * F::kKernel * ins * outs;
  std::fill_n(biases, outs, 0.0F);
  for (Index block = begin; block < end; ++block) {
    const Index first = block * F::kTiles, tiles = std::min(F::kTiles, tiling.count() - first);
    for (Index tile = first; tile < first + tiles; ++tile)
      transform_tile({x, s.in_height, s.in_width, ins}, tiling.image(tile), tiling.row(tile) - s.pad_top,
                     tiling.column(tile) - s.pad_left, inputs.data() + (tile - first) * kLanes, F::plane(kLanes));
    winograd::transform_images<F, F::OutputGradients, F::kOut>({y_grad, s.out_height, s.out_width, outs}, tiling, first,
                                                               tiles, 0, 0, zeros.data(), gradients.data());
    for (Index p = 0; p < F::kAll; ++p)
      avx512::multiply(ins, outs, tiles, inputs.data() + p * F::plane(kLanes), 1, kLanes,
                       gradients.data() + p * F::plane(outs), points.data() + p * ins * outs, block != begin);
    add_tile_sums(gradients.data(), tiles, outs, biases);
  }
  gather_turned_weights(points.data(), ins, outs, to);
}

}  // namespace

bool suits(const Conv2dShape& s) {
  return s.kernel_height == F::kKernel && s.in_channels <= kMostChannels && winograd::has_form(s) &&
         s.out_channels % kLanes == 0;
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Tiling tiling(s.batch, s.out_height, s.out_width);
  const Index ins = s.in_channels, outs = s.out_channels;
  const Scratch turned(F::kKernel * F::kKernel * ins * outs), weights(F::kAll * ins * outs);
  turn_weights(s, weight, turned.data());
  transform_turned_weights(turned.data(), ins, outs, weights.data());
  const Images<const float> in{x, s.in_height, s.in_width, ins};
  const Images<float> out{y, s.out_height, s.out_width, outs};
  constexpr decltype(&convolve_tiles<1>) kConvolve[] = {convolve_tiles<1>, convolve_tiles<2>, convolve_tiles<3>,
                                                        convolve_tiles<4>};
  const Index parts = std::min<Index>((tiling.count() + kTilesAtOnce - 1) / kTilesAtOnce, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Scratch inputs(kTilesAtOnce * F::kAll * kLanes);
    const Zeros nowhere(outs);
    const Index end = tiling.count() * (part + 1) / parts;
    for (Index first = tiling.count() * part / parts; first < end; first += kTilesAtOnce) {
      float* pixels[kTilesAtOnce][F::kOut * F::kOut];
      for (Index t = 0; t < kTilesAtOnce; ++t) {
        // The last tile is computed twice if necessary.
        const Index tile = std::min(first + t, end - 1), n = tiling.image(tile);
        transform_tile(in, n, tiling.row(tile) - s.pad_top, tiling.column(tile) - s.pad_left,
                       inputs.data() + t * F::kAll * kLanes, kLanes);
        winograd::find_square<F::kOut>(out, n, tiling.row(tile), tiling.column(tile), nowhere.data(), pixels[t]);
      }
      kConvolve[ins - 1](inputs.data(), weights.data(), outs, pixels, {bias, relu, false});
    }
  });
}

void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad) {
  const Tiling tiling(s.batch, s.out_height, s.out_width);
  const Index outs = s.out_channels, rest = F::kKernel * F::kKernel * s.in_channels;
  const Index parts = std::clamp<Index>(tiling.count() / kTilesOfOnePart, 1, kPartsAtMost);
  const Scratch sums((rest + 1) * outs);
  sum_of_parts(parts, (rest + 1) * outs, sums.data(), [&](Index part, float* to) {
    part_of_gradients(s, tiling, x, y_grad, tiling.blocks() * part / parts, tiling.blocks() * (part + 1) / parts, to);
  });
  narrow_conv::store_gradients(sums.data(), rest, outs, weight_grad, bias_grad);
}

}  // namespace lockstep::winograd_narrow

#else

namespace lockstep::winograd_narrow {

bool suits(const Conv2dShape&) { return false; }

void conv2d(const Conv2dShape&, const float*, const float*, const float*, bool, float*) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}
void conv2d_backward_weights(const Conv2dShape&, const float*, const float*, Out, Out) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}

}  // namespace lockstep::winograd_narrow

#endif
