// The int8 comm hook, with one scale per block: loops that vectorise, because they run in parallel with backward.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/reference/reference.h"
#include "kernels/int8_rule.h"
#include "lockstep/reduce/compression_kernels.h"

namespace lockstep::reference {

using hooks::Int8Slices;

namespace {

// The positions of a block's scale and numbers among the bytes, and of its values among all values.
struct Int8Block {
  Index scale, numbers, begin, end;
};

Int8Block block_of(const Int8Slices& of, Index slice, Index block) {
  constexpr Index kScaleBytes = sizeof(float);
  const Index bytes = slice * of.slice_bytes(), first = slice * of.slice_values() + block * of.block;
  return {bytes + block * kScaleBytes, bytes + of.slice_blocks * kScaleBytes + block * of.block,
          std::min(of.count, first), std::min(of.count, first + of.block)};
}

float scale_at(const std::byte* place) {
  float scale = 0;
  std::memcpy(&scale, place, sizeof scale);
  return scale;
}
const std::int8_t* numbers_at(const std::byte* place) { return reinterpret_cast<const std::int8_t*>(place); }

template <typename Use> void for_each_block(const Int8Slices& of, Use&& use) {
  for (Index slice = 0; slice < of.slices; ++slice)
    for (Index block = 0; block < of.slice_blocks; ++block) use(block_of(of, slice, block));
}

std::uint32_t largest_of_block(const float* values, Index count) {
  std::uint32_t largest = 0;
  for (Index i = 0; i < count; ++i) {
    const std::uint32_t bits = magnitude_bits(values[i]);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

void quantise_int8(const Int8Slices& of, const float* all, std::byte* slices, Stream&) {
  for_each_block(of, [&](const Int8Block& block) {
    const float* const values = all + block.begin;
    const Index count = block.end - block.begin;
    const Int8Scale scale = int8_scale(largest_of_block(values, count));
    auto* const numbers = reinterpret_cast<std::int8_t*>(slices + block.numbers);
    std::memcpy(slices + block.scale, &scale.scale, sizeof scale.scale);
    std::memset(numbers + count, 0, static_cast<std::size_t>(of.block - count));
    if (scale.is_finite)
      for (Index i = 0; i < count; ++i) numbers[i] = nearest_int8(values[i], scale.factor);
    else
      for (Index i = 0; i < count; ++i) numbers[i] = marked_int8(values[i]);
  });
}

// values += scale * numbers
void add_block(float* values, float scale, const std::int8_t* numbers, Index count) {
  if (std::isnan(scale))
    for (Index i = 0; i < count; ++i) values[i] = add_int8(values[i], scale, numbers[i]);
  else
    for (Index i = 0; i < count; ++i) values[i] += scale * static_cast<float>(numbers[i]);
}

void expand_int8(const Int8Slices& of, const std::byte* slices, float* values, Stream&) {
  for_each_block(of, [&](const Int8Block& block) {
    std::fill(values + block.begin, values + block.end, 0.0F);
    add_block(values + block.begin, scale_at(slices + block.scale), numbers_at(slices + block.numbers),
              block.end - block.begin);
  });
}

void average_int8(const Int8Slices& of, const std::byte* slices, float* average, Stream&) {
  const float share = 1 / static_cast<float>(of.slices);
  std::fill(average, average + of.slice_values(), 0.0F);
  for (Index slice = 0; slice < of.slices; ++slice)
    for (Index at = 0; at < of.slice_blocks; ++at) {
      const Int8Block block = block_of(of, slice, at);
      add_block(average + at * of.block, scale_at(slices + block.scale) * share, numbers_at(slices + block.numbers),
                of.block);
    }
}

}  // namespace

void add_int8_kernels(KernelTable& table) {
  static constexpr hooks::Int8Kernels kKernels = {
      .quantise = quantise_int8, .expand = expand_int8, .average = average_int8};
  table.families.set(kKernels);
}

}  // namespace lockstep::reference
