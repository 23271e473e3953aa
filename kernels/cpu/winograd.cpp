// Blocks of tiles go through three steps whose data stays in the second-level cache: transform (point, tile, channel),
// one matrix product a point, transform back. Weight gradients sum their products over all blocks first.
#include "kernels/cpu/winograd.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/core/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/winograd_avx512.h"

namespace lockstep::winograd {

namespace {

constexpr Index kTiles = 48;  // in a block
constexpr Index kAll = kPoints * kPoints;
constexpr Index kMostParts = 8, kBlocksOfAPart = 8;  // of a sum over all tiles: by its size alone

// From one point's (kTiles, channels) to the next. Whole pages apart they would all fall into one set of the first-level
// cache; five cache lines more spread them.
constexpr Index plane(Index channels) { return kTiles * channels + 5 * kLanes; }

// An image batch, NHWC.
template <typename Float>
struct Images {
  Float* data;
  Index height, width, channels;

  Float* pixel(Index n, Index row, Index column) const { return data + ((n * height + row) * width + column) * channels; }
  bool has(Index row, Index column) const { return row >= 0 && row < height && column >= 0 && column < width; }
};

// How an image's outputs are cut into tiles of 2 x 2.
struct Tiling {
  Index batch, rows, columns;

  Tiling(Index batch, Index height, Index width) : batch(batch), rows((height + 1) / 2), columns((width + 1) / 2) {}
  Index count() const { return batch * rows * columns; }
  Index blocks() const { return (count() + kTiles - 1) / kTiles; }
  Index image(Index tile) const { return tile / (rows * columns); }
  Index row(Index tile) const { return tile / columns % rows * kOut; }
  Index column(Index tile) const { return tile % columns * kOut; }
};

class Scratch {
 public:
  explicit Scratch(Index count) : buffer_(cpu_device().allocate(count * sizeof(float))) {}
  float* data() const { return reinterpret_cast<float*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

// Reads a square of pixels whose corner is (row, column); zeros outside the image.
template <Index kSize>
LOCKSTEP_INLINE_AVX512 void load_square(const Images<const float>& images, Index n, Index row, Index column, Index channel,
                                        __m512* square) {
  for (Index i = 0; i < kSize; ++i)
    for (Index j = 0; j < kSize; ++j)
      square[i * kSize + j] =
          images.has(row + i, column + j) ? _mm512_loadu_ps(images.pixel(n, row + i, column + j) + channel) : _mm512_setzero_ps();
}

// The points of tiles [first, first + count), whose squares start pad pixels before their outputs: plane(channels) floats a point.
LOCKSTEP_TARGET_AVX512 void transform_inputs(const Images<const float>& images, const Tiling& tiling, Index first, Index count,
                                             Index pad_top, Index pad_left, float* points) {
  const Index channels = images.channels;
  for (Index t = 0; t < count; ++t) {
    const Index tile = first + t, n = tiling.image(tile);
    const Index row = tiling.row(tile) - pad_top, column = tiling.column(tile) - pad_left;
    for (Index c = 0; c < channels; c += kLanes) {
      __m512 square[kAll], half[kAll];
      load_square<kPoints>(images, n, row, column, c, square);
      for (Index j = 0; j < kPoints; ++j) transform_input(square + j, kPoints, half + j, kPoints);
      for (Index i = 0; i < kPoints; ++i) transform_input(half + i * kPoints, 1, square + i * kPoints, 1);
      for (Index p = 0; p < kAll; ++p) _mm512_storeu_ps(points + p * plane(channels) + t * channels + c, square[p]);
    }
  }
}

LOCKSTEP_TARGET_AVX512 void transform_gradients(const Images<const float>& images, const Tiling& tiling, Index first, Index count,
                                                float* points) {
  const Index channels = images.channels;
  for (Index t = 0; t < count; ++t) {
    const Index tile = first + t, n = tiling.image(tile);
    for (Index c = 0; c < channels; c += kLanes) {
      __m512 square[kOut * kOut], half[kPoints * kOut], all[kAll];
      load_square<kOut>(images, n, tiling.row(tile), tiling.column(tile), c, square);
      for (Index j = 0; j < kOut; ++j) transform_gradient(square + j, kOut, half + j, kOut);
      for (Index i = 0; i < kPoints; ++i) transform_gradient(half + i * kOut, 1, all + i * kPoints, 1);
      for (Index p = 0; p < kAll; ++p) _mm512_storeu_ps(points + p * plane(channels) + t * channels + c, all[p]);
    }
  }
}

// The operations on an output on its way to memory.
struct Finish {
  const float* bias = nullptr;
  bool relu = false, accumulate = false;
};

LOCKSTEP_INLINE_AVX512 __m512 finished(__m512 value, const Finish& finish, Index channel, const float* slot) {
  if (finish.bias != nullptr) value = value + _mm512_loadu_ps(finish.bias + channel);
  if (finish.accumulate) value = value + _mm512_loadu_ps(slot);
  if (!finish.relu) return value;
  const __mmask16 negative = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_LT_OQ);  // NaN is not, and passes
  return _mm512_mask_mov_ps(value, negative, _mm512_setzero_ps());
}

LOCKSTEP_TARGET_AVX512 void gather_outputs(const float* points, const Images<float>& images, const Tiling& tiling, Index first, Index count,
                                           const Finish& finish) {
  const Index channels = images.channels;
  for (Index t = 0; t < count; ++t) {
    const Index tile = first + t, n = tiling.image(tile), row = tiling.row(tile), column = tiling.column(tile);
    for (Index c = 0; c < channels; c += kLanes) {
      __m512 all[kAll], half[kOut * kPoints], out[kOut * kOut];
      for (Index p = 0; p < kAll; ++p) all[p] = _mm512_loadu_ps(points + p * plane(channels) + t * channels + c);
      for (Index j = 0; j < kPoints; ++j) gather_output(all + j, kPoints, half + j, kPoints);
      for (Index i = 0; i < kOut; ++i) gather_output(half + i * kPoints, 1, out + i * kOut, 1);
      for (Index i = 0; i < kOut; ++i)
        for (Index j = 0; j < kOut; ++j)
          if (images.has(row + i, column + j)) {
            float* slot = images.pixel(n, row + i, column + j) + c;
            _mm512_storeu_ps(slot, finished(out[i * kOut + j], finish, c, slot));
          }
    }
  }
}

// OHWI weights to matrices (point, out, in), the kernel's rows and columns reversed on demand.
LOCKSTEP_TARGET_AVX512 void transform_weights(const float* weight, Index outs, Index ins, bool reversed, float* points) {
  for (Index o = 0; o < outs; ++o)
    for (Index c = 0; c < ins; c += kLanes) {
      __m512 kernel[kKernel * kKernel], half[kPoints * kKernel], all[kAll];
      for (Index tap = 0; tap < kKernel * kKernel; ++tap) {
        const Index from = reversed ? kKernel * kKernel - 1 - tap : tap;
        kernel[tap] = _mm512_loadu_ps(weight + (o * kKernel * kKernel + from) * ins + c);
      }
      for (Index j = 0; j < kKernel; ++j) transform_kernel(kernel + j, kKernel, half + j, kKernel);
      for (Index i = 0; i < kPoints; ++i) transform_kernel(half + i * kKernel, 1, all + i * kPoints, 1);
      for (Index p = 0; p < kAll; ++p) _mm512_storeu_ps(points + (p * outs + o) * ins + c, all[p]);
    }
}

// (point, out, in) to (point, in, out), in squares that fit the first-level cache.
void transpose_matrices(const float* from, Index outs, Index ins, float* to) {
  for (Index p = 0; p < kAll; ++p, from += outs * ins, to += outs * ins)
    for (Index o = 0; o < outs; o += kLanes)
      for (Index c = 0; c < ins; ++c)
        for (Index lane = 0; lane < kLanes; ++lane) to[c * outs + o + lane] = from[(o + lane) * ins + c];
}

LOCKSTEP_TARGET_AVX512 void gather_weights(const float* points, Index outs, Index ins, float* weight, bool accumulate) {
  for (Index o = 0; o < outs; ++o)
    for (Index c = 0; c < ins; c += kLanes) {
      __m512 all[kAll], half[kKernel * kPoints], kernel[kKernel * kKernel];
      for (Index p = 0; p < kAll; ++p) all[p] = _mm512_loadu_ps(points + (p * outs + o) * ins + c);
      for (Index j = 0; j < kPoints; ++j) gather_kernel(all + j, kPoints, half + j, kPoints);
      for (Index i = 0; i < kKernel; ++i) gather_kernel(half + i * kPoints, 1, kernel + i * kKernel, 1);
      for (Index tap = 0; tap < kKernel * kKernel; ++tap) {
        float* slot = weight + (o * kKernel * kKernel + tap) * ins + c;
        _mm512_storeu_ps(slot, accumulate ? kernel[tap] + _mm512_loadu_ps(slot) : kernel[tap]);
      }
    }
}

// out = in convolved with `matrices` (point, in channel, out channel).
void convolve(const Images<const float>& in, Index pad_top, Index pad_left, const float* matrices, const Images<float>& out, Index batch,
              const Finish& finish) {
  const Tiling tiling(batch, out.height, out.width);
  const Index parts = std::min<Index>(tiling.blocks(), compute_threads());
  in_parallel(parts, [&](Index part) {
    const Scratch from(kAll * plane(in.channels)), to(kAll * plane(out.channels));
    for (Index block = tiling.blocks() * part / parts; block < tiling.blocks() * (part + 1) / parts; ++block) {
      const Index first = block * kTiles, count = std::min(kTiles, tiling.count() - first);
      transform_inputs(in, tiling, first, count, pad_top, pad_left, from.data());
      for (Index p = 0; p < kAll; ++p)
        avx512::multiply(count, out.channels, in.channels, from.data() + p * plane(in.channels), in.channels, 1,
                         matrices + p * in.channels * out.channels, to.data() + p * plane(out.channels), false);
      gather_outputs(to.data(), out, tiling, first, count, finish);
    }
  });
}

}  // namespace

bool suits(const Conv2dShape& s) {
  const auto small = [](Index pad) { return pad >= 0 && pad < kKernel; };
  return cpu_isa() == Isa::kAvx512 && s.groups == 1 && s.kernel_height == kKernel && s.kernel_width == kKernel && s.stride_height == 1 &&
         s.stride_width == 1 && small(s.pad_top) && small(s.pad_left) && small(s.pad_bottom) && small(s.pad_right) && s.batch > 0 &&
         s.in_channels > 0 && s.out_channels > 0 && s.in_channels % 64 == 0 && s.out_channels % 64 == 0;
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Index count = kAll * s.in_channels * s.out_channels;
  const Scratch matrices(count), transposed(count);
  transform_weights(weight, s.out_channels, s.in_channels, false, transposed.data());
  transpose_matrices(transposed.data(), s.out_channels, s.in_channels, matrices.data());
  convolve({x, s.in_height, s.in_width, s.in_channels}, s.pad_top, s.pad_left, matrices.data(),
           {y, s.out_height, s.out_width, s.out_channels}, s.batch, {bias, relu, false});
}

void conv2d_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad, bool accumulate) {
  const Scratch matrices(kAll * s.in_channels * s.out_channels);
  transform_weights(weight, s.out_channels, s.in_channels, true, matrices.data());
  convolve({y_grad, s.out_height, s.out_width, s.out_channels}, kKernel - 1 - s.pad_top, kKernel - 1 - s.pad_left, matrices.data(),
           {x_grad, s.in_height, s.in_width, s.in_channels}, s.batch, {nullptr, false, accumulate});
}

void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad, bool accumulate) {
  const Tiling tiling(s.batch, s.out_height, s.out_width);
  const Index size = s.in_channels * s.out_channels;
  const Index parts = std::clamp<Index>(tiling.blocks() / kBlocksOfAPart, 1, kMostParts);
  const Scratch sums(kAll * size);
  sum_of_parts(parts, kAll * size, sums.data(), [&](Index part, float* to) {
    const Scratch inputs(kAll * plane(s.in_channels)), gradients(kAll * plane(s.out_channels));
    const Index begin = tiling.blocks() * part / parts, end = tiling.blocks() * (part + 1) / parts;
    for (Index block = begin; block < end; ++block) {
      const Index first = block * kTiles, count = std::min(kTiles, tiling.count() - first);
      transform_inputs({x, s.in_height, s.in_width, s.in_channels}, tiling, first, count, s.pad_top, s.pad_left, inputs.data());
      transform_gradients({y_grad, s.out_height, s.out_width, s.out_channels}, tiling, first, count, gradients.data());
      for (Index p = 0; p < kAll; ++p)
        avx512::multiply(s.out_channels, s.in_channels, count, gradients.data() + p * plane(s.out_channels), 1, s.out_channels,
                         inputs.data() + p * plane(s.in_channels), to + p * size, block != begin);
    }
  });
  gather_weights(sums.data(), s.out_channels, s.in_channels, weight_grad, accumulate);
}

}  // namespace lockstep::winograd

#else

namespace lockstep::winograd {

bool suits(const Conv2dShape&) { return false; }

void conv2d(const Conv2dShape&, const float*, const float*, const float*, bool, float*) { LOCKSTEP_CHECK(false, "no AVX-512 here"); }
void conv2d_backward_data(const Conv2dShape&, const float*, const float*, float*, bool) { LOCKSTEP_CHECK(false, "no AVX-512 here"); }
void conv2d_backward_weights(const Conv2dShape&, const float*, const float*, float*, bool) { LOCKSTEP_CHECK(false, "no AVX-512 here"); }

}  // namespace lockstep::winograd

#endif
