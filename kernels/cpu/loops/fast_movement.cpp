// Copies of elements: entire rows where they are contiguous in both arrays, tiles where they are transposed.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/cpu/simd/transpose.h"
#include "kernels/strided_loop.h"
#include "lockstep/core/cpu_dispatch.h"


namespace lockstep::fast {

namespace {

using CopyLoop = StridedLoop<2>;  // in, out

LOCKSTEP_CPU_DISPATCH(void, add_row, (const float* in, float* out, Index count, Index in_step, Index out_step),
                      (in, out, count, in_step, out_step), {
                        if (in_step == 1 && out_step == 1) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index i = 0; i < count; ++i) out[i] += in[i];
                          return;
                        }
                        for (Index i = 0; i < count; ++i) out[i * out_step] += in[i * in_step];
                      })

void add_strided(const StridedCopy& copy, In in, Out out, Stream&) {
  const CopyLoop loop(copy.extents, {copy.in_strides, copy.out_strides});
  const float* const from = in.floats() + copy.in_offset;
  float* const to = out.floats() + copy.out_offset;
  for_each_outer(loop, 1, [&](const auto& at) {
    add_row(from + at[0], to + at[1], loop.extent(0), loop.stride(0, 0), loop.stride(1, 0));
  });
}

// Moves the dimension in which `in` is contiguous next to the innermost one, in which `out` is contiguous. Returns
// false if there is no such dimension.
bool make_transposed(CopyLoop& loop) {
  if (loop.dims < 2 || loop.stride(1, 0) != 1 || loop.stride(0, 0) == 0) return false;
  int dim = 0;
  while (dim < loop.dims && loop.strides[0][dim] != 1) ++dim;
  if (dim >= loop.dims - 1) return false;
  for (; dim < loop.dims - 2; ++dim) {
    std::swap(loop.extents[dim], loop.extents[dim + 1]);
    for (auto& strides : loop.strides) std::swap(strides[dim], strides[dim + 1]);
  }
  return true;
}

void copy_words_transposed(const CopyLoop& loop, const void* in, void* out) {
  const auto transpose = LOCKSTEP_BY_ISA(transpose);
  for_each_outer(loop, 2, [&](const auto& at) {
    transpose(static_cast<const float*>(in) + at[0], loop.stride(0, 0), static_cast<float*>(out) + at[1],
              loop.stride(1, 1), loop.extent(1), loop.extent(0));
  });
}

// Copies in tiles whose rows stay in the cache, so that each cache line is read once.
template <typename T> void copy_transposed(const CopyLoop& loop, const T* in, T* out) {
  constexpr Index kTile = 32;
  const bool has_squares = std::min(loop.extent(0), loop.extent(1)) >= LOCKSTEP_BY_ISA(kLanes);
  if (sizeof(T) == sizeof(float) && has_squares) return copy_words_transposed(loop, in, out);
  const Index columns = loop.extent(0), rows = loop.extent(1), in_step = loop.stride(0, 0), out_row = loop.stride(1, 1);
  for_each_outer(loop, 2, [&](const auto& at) {
    for (Index row = 0; row < rows; row += kTile)
      for (Index column = 0; column < columns; column += kTile)
        for (Index r = row; r < std::min(rows, row + kTile); ++r)
          for (Index c = column; c < std::min(columns, column + kTile); ++c)
            out[at[1] + r * out_row + c] = in[at[0] + c * in_step + r];
  });
}

template <typename T>
void copy_elements(CopyLoop loop, const void* in_memory, void* out_memory, Index in_offset, Index out_offset) {
  const T* const in = static_cast<const T*>(in_memory) + in_offset;
  T* const out = static_cast<T*>(out_memory) + out_offset;
  const Index count = loop.extent(0), in_step = loop.stride(0, 0), out_step = loop.stride(1, 0);
  if (in_step == 1 && out_step == 1)
    return for_each_outer(loop, 1, [&](const auto& at) {
      std::memcpy(out + at[1], in + at[0], static_cast<std::size_t>(count) * sizeof(T));
    });
  if (make_transposed(loop)) return copy_transposed(loop, in, out);
  for_each_outer(loop, 1, [&](const auto& at) {
    const T* const from = in + at[0];
    T* const to = out + at[1];
    if (in_step == 0 && out_step == 1)
      std::fill_n(to, count, *from);
    else
      for (Index i = 0; i < count; ++i) to[i * out_step] = from[i * in_step];
  });
}

void copy_strided(const StridedCopy& copy, In in, Out out, Stream& stream) {
  if (copy.extents.count() == 0) return;
  if (out.accumulate) return any_float<add_strided>(copy, in, out, stream);
  const CopyLoop loop(copy.extents, {copy.in_strides, copy.out_strides});
  switch (size_of(out.dtype)) {
    case 1: return copy_elements<std::uint8_t>(loop, in.data, out.data, copy.in_offset, copy.out_offset);
    case 2: return copy_elements<std::uint16_t>(loop, in.data, out.data, copy.in_offset, copy.out_offset);
    case 4: return copy_elements<std::uint32_t>(loop, in.data, out.data, copy.in_offset, copy.out_offset);
    default: return copy_elements<std::uint64_t>(loop, in.data, out.data, copy.in_offset, copy.out_offset);
  }
}

}  // namespace

void use_movement(KernelTable& table) { table.copy_strided = copy_strided; }

}  // namespace lockstep::fast
