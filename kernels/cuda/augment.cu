// Augmentation of images: a crop, possibly mirrored, with changed brightness and contrast, normalised. One block per
// image; sums are in double in a fixed order, so results are reproducible bit for bit, and equal the CPU's up to
// rounding.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fast_division.cuh"
#include "lockstep/data/augment_kernels.h"

namespace lockstep::cuda {

using data::Augmentation;
using data::ImageNormalization;
using data::ImageShape;

namespace {

// Pixel `i` of the crop, (row, column, channel), read from the image; black outside it.
template <typename Number> __device__ float pixel(const ImageShape& shape, Divisor<Number> crop,
                                                  const std::uint8_t* planes, const Augmentation& how, Number i) {
  const Divided<Number> at = crop.divide(i / 3);
  const Index channel = i % 3, column = at.remainder, row = how.top + at.quotient;
  const Index from = how.left + (how.mirrored != 0 ? shape.crop - 1 - column : column);
  if (row < 0 || row >= shape.side || from < 0 || from >= shape.side) return 0;
  return planes[(channel * shape.side + row) * shape.side + from];
}

__device__ double sum_for_all(double value) {
  __shared__ double shared;
  const double sum = sum_of_block<kThreads>(value);
  if (threadIdx.x == 0) shared = sum;
  __syncthreads();
  const double result = shared;
  __syncthreads();  // all threads have read it before the next sum
  return result;
}

// Standardises all `count` values that the block has written to `image`.
__device__ void standardise(float* image, Index count, double sum) {
  const double mean = sum_for_all(sum) / static_cast<double>(count);
  double squares = 0;
  for (Index i = threadIdx.x; i < count; i += kThreads) squares += (image[i] - mean) * (image[i] - mean);
  const double deviation =
      fmax(sqrt(sum_for_all(squares) / static_cast<double>(count)), 1 / sqrt(static_cast<double>(count)));
  const float factor = static_cast<float>(1 / deviation), offset = static_cast<float>(mean);
  for (Index i = threadIdx.x; i < count; i += kThreads) image[i] = (image[i] - offset) * factor;
}

__device__ float normalised(const ImageNormalization& by, Index channel, float value) {
  return (value - by.mean[channel] * 255) * (1 / (by.deviation[channel] * 255));
}

template <typename Number> __global__ void augment_images(ImageShape shape, Divisor<Number> crop,
                                                          ImageNormalization normalization, const std::uint8_t* planes,
                                                          const Augmentation* each, float* out) {
  const Index count = shape.crop * shape.crop * 3;
  const bool per_image = normalization.kind == ImageNormalization::Kind::kPerImage;
  for (Index n = blockIdx.x; n < shape.batch; n += gridDim.x) {
    const Augmentation how = each[n];
    const std::uint8_t* image = planes + n * shape.side * shape.side * 3;
    float* const result = out + n * count;
    float contrast[3] = {1, 1, 1}, shift[3] = {0, 0, 0};
    if (how.brightness != 0 || how.contrast != 1)
      for (Index channel = 0; channel < 3; ++channel) {
        double sum = 0;
        for (Index i = channel + 3 * static_cast<Index>(threadIdx.x); i < count; i += 3 * kThreads)
          sum += pixel(shape, crop, image, how, static_cast<Number>(i));
        const float mean = static_cast<float>(sum_for_all(sum) / static_cast<double>(count / 3)) + how.brightness;
        contrast[channel] = how.contrast;
        shift[channel] = (how.brightness - mean) * how.contrast + mean;
      }
    double sum = 0;
    for (Index i = threadIdx.x; i < count; i += kThreads) {
      const auto at = static_cast<Number>(i), channel = at % 3;
      const float value = pixel(shape, crop, image, how, at) * contrast[channel] + shift[channel];
      result[i] = per_image ? value : normalised(normalization, channel, value);
      sum += result[i];
    }
    if (per_image) standardise(result, count, sum);
  }
}

void augment(const ImageShape& shape, const ImageNormalization& normalization, const std::uint8_t* planes,
             const Augmentation* each, float* out, Stream& stream) {
  if (shape.batch == 0 || shape.crop == 0) return;
  with_index_of(3 * shape.crop * shape.crop, [&]<typename Number>(Number) {
    LOCKSTEP_LAUNCH((augment_images<Number>), blocks_for(shape.batch, 1), kThreads, 0, stream, shape,
                    Divisor<Number>(shape.crop), normalization, planes, each, out);
  });
}

}  // namespace

void add_augment_kernels(KernelTable& table) {
  static constexpr data::AugmentKernels kKernels = {.augment = augment};
  table.families.set(kKernels);
}

}  // namespace lockstep::cuda
