// Blocks of tiles go through three steps whose data stays in the second-level cache: transform to (point, tile,
// channel), one matrix product per point, transform back. Gradients of the weights first sum their products over the
// blocks of a part.
#include "kernels/cpu/winograd.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/core/process/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/transpose_avx512.h"
#include "kernels/cpu/winograd_tiles.h"

namespace lockstep::winograd {

namespace {

// Parts of a sum over all tiles; their number depends only on its size.
constexpr Index kMostParts = 8, kTilesOfAPart = 384;

// `nowhere` receives outputs outside the image; it has as many floats as there are channels.
template <typename F> LOCKSTEP_TARGET_AVX512 void gather_outputs(const float* points, const Images<float>& images,
                                                                 const Tiling<F>& tiling, Index first, Index count,
                                                                 const Finish& finish, float* nowhere) {
  constexpr Index kPoints = F::kPoints, kOut = F::kOut;
  const Index channels = images.channels, plane = F::plane(channels);
  for (Index tile = first; tile < first + count; ++tile, points += channels) {
    float* pixels[kOut * kOut];
    find_square<kOut>(images, tiling.image(tile), tiling.row(tile), tiling.column(tile), nowhere, pixels);
    for (Index c = 0; c < channels; c += kLanes) {
      __m512 half[kPoints * kOut];  // (column, output)
      for (Index j = 0; j < kPoints; ++j) {
        __m512 column[kPoints];
        for (Index i = 0; i < kPoints; ++i) column[i] = _mm512_loadu_ps(points + (i * kPoints + j) * plane + c);
        F::Outputs::apply(column, 1, half + j * kOut);
      }
      store_outputs<F>(half, finish, c, pixels);
    }
  }
}

// OHWI weights to matrices (point, out, in); optionally reverses the kernel's rows and columns.
template <typename F> LOCKSTEP_TARGET_AVX512 void transform_weights(const float* weight, Index outs, Index ins,
                                                                    bool reversed, float* points) {
  constexpr Index kTaps = F::kKernel * F::kKernel;
  for (Index o = 0; o < outs; ++o, weight += kTaps * ins)
    for (Index c = 0; c < ins; c += kLanes)
      transform_square<typename F::Kernels, F::kKernel, F::kPoints>(
          weight + (reversed ? (kTaps - 1) * ins : 0) + c, reversed ? -ins : ins, points + o * ins + c, outs * ins);
}

// Transposes (point, out, in) to (point, in, out).
template <typename F> void transpose_matrices(const float* from, Index outs, Index ins, float* to) {
  for (Index p = 0; p < F::kAll; ++p, from += outs * ins, to += outs * ins)
    avx512::transpose(from, ins, to, outs, ins, outs);
}

template <typename F>
LOCKSTEP_TARGET_AVX512 void gather_weights(const float* points, Index outs, Index ins, float* weight) {
  for (Index o = 0; o < outs; ++o, weight += F::kKernel * F::kKernel * ins)
    for (Index c = 0; c < ins; c += kLanes)
      transform_square<typename F::KernelGradients, F::kPoints, F::kKernel>(points + o * ins + c, outs * ins,
                                                                            weight + c, ins);
}

// out = in convolved with `matrices` (point, in channel, out channel).
template <typename F> void convolve(const Images<const float>& in, Index pad_top, Index pad_left, const float* matrices,
                                    const Images<float>& out, Index batch, const Finish& finish) {
  const Tiling<F> tiling(batch, out.height, out.width);
  const Zeros zeros(in.channels);
  const Index parts = std::min<Index>(tiling.blocks(), compute_threads());
  in_parallel(parts, [&](Index part) {
    const Scratch from(F::points(in.channels)), to(F::points(out.channels));
    const Zeros nowhere(out.channels);
    for (Index block = tiling.blocks() * part / parts; block < tiling.blocks() * (part + 1) / parts; ++block) {
      const Index first = block * F::kTiles, count = std::min(F::kTiles, tiling.count() - first);
      transform_images<F, typename F::Inputs, F::kPoints>(in, tiling, first, count, pad_top, pad_left, zeros.data(),
                                                          from.data());
      for (Index p = 0; p < F::kAll; ++p)
        avx512::multiply(count, out.channels, in.channels, from.data() + p * F::plane(in.channels), in.channels, 1,
                         matrices + p * in.channels * out.channels, to.data() + p * F::plane(out.channels), false);
      gather_outputs<F>(to.data(), out, tiling, first, count, finish, nowhere.data());
    }
  });
}

template <typename F>
void forward(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Index count = F::kAll * s.in_channels * s.out_channels;
  const Scratch matrices(count), transposed(count);
  transform_weights<F>(weight, s.out_channels, s.in_channels, false, transposed.data());
  transpose_matrices<F>(transposed.data(), s.out_channels, s.in_channels, matrices.data());
  convolve<F>({x, s.in_height, s.in_width, s.in_channels}, s.pad_top, s.pad_left, matrices.data(),
              {y, s.out_height, s.out_width, s.out_channels}, s.batch, {bias, relu, false});
}

template <typename F>
void backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad, bool accumulate) {
  const Scratch matrices(F::kAll * s.in_channels * s.out_channels);
  transform_weights<F>(weight, s.out_channels, s.in_channels, true, matrices.data());
  convolve<F>({y_grad, s.out_height, s.out_width, s.out_channels}, F::kKernel - 1 - s.pad_top,
              F::kKernel - 1 - s.pad_left, matrices.data(), {x_grad, s.in_height, s.in_width, s.in_channels}, s.batch,
              {nullptr, false, accumulate});
}

// The points are summed over the tiles of a part and transformed back, so the parts' sums are as small as the weights.
template <typename F>
void backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad, bool accumulate) {
  const Tiling<F> tiling(s.batch, s.out_height, s.out_width);
  const Index ins = s.in_channels, outs = s.out_channels, count = outs * F::kKernel * F::kKernel * ins;
  const Zeros zeros(std::max(ins, outs));
  const Index parts = std::clamp<Index>(tiling.count() / kTilesOfAPart, 1, kMostParts);
  const Scratch sums(count);
  sum_of_parts(parts, count, sums.data(), [&](Index part, float* to) {
    const Scratch inputs(F::points(ins)), gradients(F::points(outs)), points(F::kAll * ins * outs);
    const Index begin = tiling.blocks() * part / parts, end = tiling.blocks() * (part + 1) / parts;
    for (Index block = begin; block < end; ++block) {
      const Index first = block * F::kTiles, tiles = std::min(F::kTiles, tiling.count() - first);
      transform_images<F, typename F::Inputs, F::kPoints>({x, s.in_height, s.in_width, ins}, tiling, first, tiles,
                                                          s.pad_top, s.pad_left, zeros.data(), inputs.data());
      transform_images<F, typename F::OutputGradients, F::kOut>({y_grad, s.out_height, s.out_width, outs}, tiling,
                                                                first, tiles, 0, 0, zeros.data(), gradients.data());
      for (Index p = 0; p < F::kAll; ++p)
        avx512::multiply(outs, ins, tiles, gradients.data() + p * F::plane(outs), 1, outs,
                         inputs.data() + p * F::plane(ins), points.data() + p * ins * outs, block != begin);
    }
    gather_weights<F>(points.data(), outs, ins, to);
  });
  cpu_device().kernels().scale({sums.data(), {count}}, 1, {weight_grad, {count}, accumulate},
                               cpu_device().default_stream());
}

// Tiles of 4 x 4 need a quarter to a third of the direct products, but also compute outputs beyond the edge.
bool wastes_little(Index height, Index width) {
  const auto whole = [](Index size) { return (size + 3) / 4 * 4; };
  return whole(height) * whole(width) <= 2 * height * width;
}

// True if the saved products outweigh the transformation of the weights, and reading the transformed weights once for
// each block of tiles: always for few channels, for many channels if there are as many tiles as in a part of a sum.
template <typename F> bool is_worthwhile(const Conv2dShape& s) {
  constexpr Index kSmall = 320 << 10, kLarge = kSmall * 8, kManyTiles = 128;  // floats
  const Index points = F::kAll * s.in_channels * s.out_channels;
  return points <= kSmall || (points <= kLarge && Tiling<F>(s.batch, s.out_height, s.out_width).count() >= kManyTiles);
}

}  // namespace

bool has_form(const Conv2dShape& s) {
  const Index kernel = s.kernel_height;
  if (cpu_isa() < Isa::kAvx512 || (kernel != 3 && kernel != 5) || s.kernel_width != kernel || s.groups != 1)
    return false;
  if (s.stride_height != 1 || s.stride_width != 1 || s.batch <= 0 || s.in_channels <= 0 || s.out_channels <= 0)
    return false;
  for (const Index pad : {s.pad_top, s.pad_left, s.pad_bottom, s.pad_right})
    if (pad < 0 || pad >= kernel) return false;
  return wastes_little(s.out_height, s.out_width);
}

bool suits(const Conv2dShape& s) {
  return has_form(s) && s.in_channels % kLanes == 0 && s.out_channels % kLanes == 0 &&
         wastes_little(s.in_height, s.in_width) &&
         (s.kernel_height == 5 ? is_worthwhile<Form<5>>(s) : is_worthwhile<Form<3>>(s));
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  (s.kernel_height == 5 ? forward<Form<5>> : forward<Form<3>>)(s, x, weight, bias, relu, y);
}
void conv2d_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  (s.kernel_height == 5 ? backward_data<Form<5>> : backward_data<Form<3>>)(s, y_grad, weight, x_grad, accumulate);
}
void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate) {
  (s.kernel_height == 5 ? backward_weights<Form<5>> : backward_weights<Form<3>>)(s, x, y_grad, weight_grad, accumulate);
}

}  // namespace lockstep::winograd

#else

namespace lockstep::winograd {

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

}  // namespace lockstep::winograd

#endif
