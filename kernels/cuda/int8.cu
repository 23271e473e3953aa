// The int8 comm hook, with one scale per block of values: one warp per block, four adjacent values per lane. Computes
// elementwise and in the order of the slices, so the bits are the CPU's.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/int8_rule.h"
#include "lockstep/reduce/compression_kernels.h"

namespace lockstep::cuda {

using hooks::Int8Slices;

namespace {

constexpr int kNumbersOfLane = 4;
constexpr Index kScaleBytes = sizeof(float);
using Numbers = Pack<std::int8_t, kNumbersOfLane>;

// Block `number` of all: the positions of its scale and numbers among the bytes, and of its values among all values.
struct Int8Block {
  Index scale, numbers, begin, end;
};
__device__ Int8Block int8_block(const Int8Slices& of, Index number) {
  const Index slice = number / of.slice_blocks * of.slice_bytes(), block = number % of.slice_blocks,
              first = number * of.block;
  return {slice + block * kScaleBytes, slice + of.slice_blocks * kScaleBytes + block * of.block, min(of.count, first),
          min(of.count, first + of.block)};
}

__device__ Index first_number_of_lane() { return static_cast<Index>(threadIdx.x % 32) * kNumbersOfLane; }
constexpr Index kNumbersOfWarp = 32 * kNumbersOfLane;

__device__ std::uint32_t largest_of_warp(std::uint32_t value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

__global__ void quantise_blocks(Int8Slices of, const float* values, std::byte* slices) {
  const Index lane = threadIdx.x % 32;
  for (Index number = first_row_of_warp(); number < of.slices * of.slice_blocks; number += warps_of_grid()) {
    const Int8Block block = int8_block(of, number);
    std::uint32_t largest = 0;
    for (Index i = block.begin + lane; i < block.end; i += 32) largest = max(largest, magnitude_bits(values[i]));
    const Int8Scale scale = int8_scale(largest_of_warp(largest));
    if (lane == 0) *reinterpret_cast<float*>(slices + block.scale) = scale.scale;
    for (Index i = first_number_of_lane(); i < of.block; i += kNumbersOfWarp) {
      Numbers numbers;
      for (int k = 0; k < kNumbersOfLane; ++k) {
        const float value = block.begin + i + k < block.end ? values[block.begin + i + k] : 0.0F;
        numbers.values[k] = scale.is_finite ? nearest_int8(value, scale.factor) : marked_int8(value);
      }
      *reinterpret_cast<Numbers*>(slices + block.numbers + i) = numbers;
    }
  }
}

__global__ void expand_blocks(Int8Slices of, const std::byte* slices, float* values) {
  for (Index number = first_row_of_warp(); number < of.slices * of.slice_blocks; number += warps_of_grid()) {
    const Int8Block block = int8_block(of, number);
    const float scale = *reinterpret_cast<const float*>(slices + block.scale);
    for (Index i = first_number_of_lane(); block.begin + i < block.end; i += kNumbersOfWarp) {
      const Numbers numbers = *reinterpret_cast<const Numbers*>(slices + block.numbers + i);
      for (int k = 0; k < kNumbersOfLane; ++k)
        if (block.begin + i + k < block.end) values[block.begin + i + k] = add_int8(0, scale, numbers.values[k]);
    }
  }
}

__global__ void average_blocks(Int8Slices of, const std::byte* slices, float share, float* average) {
  for (Index number = first_row_of_warp(); number < of.slice_blocks; number += warps_of_grid()) {
    const Int8Block block = int8_block(of, number);  // the block in the first slice
    for (Index i = first_number_of_lane(); i < of.block; i += kNumbersOfWarp) {
      float sums[kNumbersOfLane] = {};
      for (Index slice = 0; slice < of.slices; ++slice) {
        const std::byte* const bytes = slices + slice * of.slice_bytes();
        const float scale = *reinterpret_cast<const float*>(bytes + block.scale) * share;
        const Numbers numbers = *reinterpret_cast<const Numbers*>(bytes + block.numbers + i);
        for (int k = 0; k < kNumbersOfLane; ++k) sums[k] = add_int8(sums[k], scale, numbers.values[k]);
      }
      for (int k = 0; k < kNumbersOfLane; ++k) average[number * of.block + i + k] = sums[k];
    }
  }
}

void quantise_int8(const Int8Slices& of, const float* values, std::byte* slices, Stream& stream) {
  if (of.slice_blocks > 0)
    LOCKSTEP_LAUNCH(quantise_blocks, blocks_for(of.slices * of.slice_blocks, kWarpsOfBlock), kThreads, 0, stream, of,
                    values, slices);
}

void expand_int8(const Int8Slices& of, const std::byte* slices, float* values, Stream& stream) {
  if (of.slice_blocks > 0)
    LOCKSTEP_LAUNCH(expand_blocks, blocks_for(of.slices * of.slice_blocks, kWarpsOfBlock), kThreads, 0, stream, of,
                    slices, values);
}

void average_int8(const Int8Slices& of, const std::byte* slices, float* average, Stream& stream) {
  const float share = 1 / static_cast<float>(of.slices);
  if (of.slice_blocks > 0)
    LOCKSTEP_LAUNCH(average_blocks, blocks_for(of.slice_blocks, kWarpsOfBlock), kThreads, 0, stream, of, slices, share,
                    average);
}

}  // namespace

void add_int8_kernels(KernelTable& table) {
  static constexpr hooks::Int8Kernels kKernels = {
      .quantise = quantise_int8, .expand = expand_int8, .average = average_int8};
  table.families.set(kKernels);
}

}  // namespace lockstep::cuda
