// Copies of elements. A thread copies 16 bytes where they are contiguous in both arrays; transposed arrays go through
// tiles in shared memory, so that both sides are read and written in rows.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/offsets.cuh"

namespace lockstep::cuda {

namespace {

using CopyLoop = StridedLoop<2>;  // in, out

struct alignas(16) Sixteen {
  std::uint64_t halves[2];
};

template <typename T, typename Number>
__global__ void copy_one(DividedLoop<2, Number> loop, const T* in, T* out, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Offsets<2> at = offsets_at(loop, i);
    out[at.of[1]] = in[at.of[0]];
  }
}

template <typename T, typename Number>
__global__ void add_one(DividedLoop<2, Number> loop, const T* in, T* out, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Offsets<2> at = offsets_at(loop, i);
    store(out[at.of[1]], widen(in[at.of[0]]), true);
  }
}

constexpr int kTile = 32, kTileThreads = 8;  // rows of threads

// The last two dimensions are (rows, columns): `in` is contiguous along the rows' index, `out` along the columns'.
// `outer` has the other dimensions.
template <typename T, typename Number> __global__ void copy_tiles(DividedLoop<2, Number> outer, Index outer_count,
                                                                  Index rows, Index columns, Index in_step,
                                                                  Index out_row, const T* in, T* out) {
  __shared__ T tile[kTile][kTile + 1];
  const Index row_tiles = (rows + kTile - 1) / kTile, column_tiles = (columns + kTile - 1) / kTile;
  for (Index block = blockIdx.x; block < outer_count * row_tiles * column_tiles; block += gridDim.x) {
    const Offsets<2> at = offsets_at(outer, block / (row_tiles * column_tiles));
    const Index row = block / column_tiles % row_tiles * kTile, column = block % column_tiles * kTile;
    for (int k = static_cast<int>(threadIdx.y); k < kTile; k += kTileThreads)
      if (column + k < columns && row + threadIdx.x < rows)
        tile[k][threadIdx.x] = in[at.of[0] + (column + k) * in_step + row + threadIdx.x];
    __syncthreads();
    for (int k = static_cast<int>(threadIdx.y); k < kTile; k += kTileThreads)
      if (row + k < rows && column + threadIdx.x < columns)
        out[at.of[1] + (row + k) * out_row + column + threadIdx.x] = tile[threadIdx.x][k];
    __syncthreads();
  }
}

// The dimension, apart from the innermost one, in which `in` is contiguous; -1 if no tiles are needed.
int transposed_dimension(const CopyLoop& loop) {
  if (loop.dims < 2 || loop.stride(1, 0) != 1 || loop.stride(0, 0) <= 1) return -1;
  for (int dim = 0; dim < loop.dims - 1; ++dim)
    if (loop.strides[0][dim] == 1) return dim;
  return -1;
}

template <typename T> void launch_tiles(const CopyLoop& loop, int dim, const T* in, T* out, Stream& stream) {
  const Index rows = loop.extents[dim], columns = loop.extent(0), in_step = loop.stride(0, 0),
              out_row = loop.strides[1][dim];
  CopyLoop outer = loop;
  outer.dims = 0;
  for (int d = 0; d < loop.dims - 1; ++d) {
    if (d == dim) continue;
    outer.extents[outer.dims] = loop.extents[d];
    for (int array = 0; array < 2; ++array) outer.strides[array][outer.dims] = loop.strides[array][d];
    ++outer.dims;
  }
  const Index blocks = outer.count() * ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
  with_divided(outer, [&]<typename Number>(const DividedLoop<2, Number>& divided) {
    LOCKSTEP_LAUNCH((copy_tiles<T, Number>), blocks_for(blocks, 1), dim3(kTile, kTileThreads), 0, stream, divided,
                    outer.count(), rows, columns, in_step, out_row, in, out);
  });
}

// True if `together` elements of `bytes` each can be moved as one.
bool moves_together(const CopyLoop& loop, Index together, Index bytes, const void* in, const void* out) {
  const auto width = static_cast<std::uintptr_t>(together * bytes);
  bool fits = loop.stride(0, 0) == 1 && loop.stride(1, 0) == 1 && loop.extent(0) % together == 0 &&
              reinterpret_cast<std::uintptr_t>(in) % width == 0 && reinterpret_cast<std::uintptr_t>(out) % width == 0;
  for (int dim = 0; dim < loop.dims - 1; ++dim)
    for (const auto& strides : loop.strides) fits = fits && strides[dim] % together == 0;
  return fits;
}

template <typename T> void launch_copy(const CopyLoop& loop, const T* in, T* out, Stream& stream) {
  with_divided(loop, [&]<typename Number>(const DividedLoop<2, Number>& divided) {
    LOCKSTEP_LAUNCH((copy_one<T, Number>), blocks_for(loop.count()), kThreads, 0, stream, divided, in, out,
                    loop.count());
  });
}

template <typename T> void run_copy(CopyLoop loop, const void* in_memory, void* out_memory, Index in_offset,
                                    Index out_offset, Stream& stream) {
  const T* const in = static_cast<const T*>(in_memory) + in_offset;
  T* const out = static_cast<T*>(out_memory) + out_offset;
  constexpr Index kTogether = static_cast<Index>(sizeof(Sixteen) / sizeof(T));
  if (moves_together(loop, kTogether, sizeof(T), in, out)) {
    loop.extents[loop.dims - 1] /= kTogether;
    for (int dim = 0; dim < loop.dims - 1; ++dim)
      for (auto& strides : loop.strides) strides[dim] /= kTogether;
    launch_copy(loop, reinterpret_cast<const Sixteen*>(in), reinterpret_cast<Sixteen*>(out), stream);
  } else if (const int dim = transposed_dimension(loop); dim >= 0) {
    launch_tiles(loop, dim, in, out, stream);
  } else {
    launch_copy(loop, in, out, stream);
  }
}

// Parameters of the kernels along `dim`: strides of the index and of x, and the numbers of indices and positions.
struct Line {
  Index n, bound, index_step, x_step;
};

Line line_of(std::size_t dim, const Shape& index, const Shape& x) {
  return {index[dim], x[dim], strides_of(index)[dim], strides_of(x)[dim]};
}

// One thread per result. `loop` runs over the index; the strides of x are 0 along the line.
template <typename T, typename Number>
__global__ void gather_one(DividedLoop<1, Number> loop, Line line, const T* x, const Index* index, T* y, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Index place = index[i];
    if (place < 0 || place >= line.bound)
      write(y[i], nanf(""));
    else
      y[i] = x[offsets_at(loop, i).of[0] + place * line.x_step];
  }
}

void gather_along(std::size_t dim, In x, In index, Out y, Stream& stream) {
  const Index count = y.count();
  if (count == 0) return;
  Strides still = strides_of(x.shape);
  still[dim] = 0;
  const StridedLoop<1> loop(index.shape, {still});
  with_float(y.dtype, [&]<typename T>(T*) {
    with_divided(loop, [&]<typename Number>(const DividedLoop<1, Number>& divided) {
      LOCKSTEP_LAUNCH((gather_one<T, Number>), blocks_for(count), kThreads, 0, stream, divided,
                      line_of(dim, index.shape, x.shape), x.as<T>(), index.as<Index>(), y.as<T>(), count);
    });
  });
}

__global__ void zero(float* out, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) out[i] = 0;
}

template <typename T> __global__ void store_sums(const float* sums, T* out, Index count, bool accumulate) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) store(out[i], sums[i], accumulate);
}

// One thread per line, which adds in the order of the index, so results are reproducible bit for bit. `loop` runs over
// the lines of the index and of x.
template <typename T, typename Number> __global__ void add_lines(DividedLoop<2, Number> loop, Line line,
                                                                 const Index* index, const T* y_grad, float* x_grad,
                                                                 Index lines) {
  for (Index l = first_item(); l < lines; l += stride_of_grid()) {
    const Offsets<2> at = offsets_at(loop, l);
    for (Index i = 0; i < line.n; ++i) {
      const Index from = at.of[0] + i * line.index_step, place = index[from];
      const bool outside = place < 0 || place >= line.bound;
      x_grad[at.of[1] + (outside ? 0 : place) * line.x_step] += outside ? nanf("") : widen(y_grad[from]);
    }
  }
}

// Calls `call` with the loop over the lines of the index and of x, and their number.
template <typename Call> void with_lines(std::size_t dim, const Shape& index, const Shape& x, Call&& call) {
  Index extents[Shape::kMaxDims] = {};
  for (std::size_t d = 0; d < index.dims(); ++d) extents[d] = d == dim ? 1 : index[d];
  const Shape lines(std::span<const Index>(extents, index.dims()));
  with_divided(StridedLoop<2>(lines, {strides_of(index), strides_of(x)}),
               [&]<typename Number>(const DividedLoop<2, Number>& loop) { call(loop, lines.count()); });
}

// x_grad (float32) += y_grad
void add_gathered(std::size_t dim, In index, In y_grad, float* x_grad, const Shape& x, Stream& stream) {
  if (y_grad.count() == 0) return;
  with_lines(dim, index.shape, x, [&]<typename Number>(const DividedLoop<2, Number>& loop, Index lines) {
    with_float(y_grad.dtype, [&]<typename T>(T*) {
      LOCKSTEP_LAUNCH((add_lines<T, Number>), blocks_for(lines), kThreads, 0, stream, loop,
                      line_of(dim, index.shape, x), index.as<Index>(), y_grad.as<T>(), x_grad, lines);
    });
  });
}

// 16-bit gradients are summed in float32 and rounded once.
void gather_backward(std::size_t dim, In index, In y_grad, Out x_grad, Stream& stream) {
  const Index count = x_grad.count();
  if (count == 0) return;
  const bool direct = x_grad.dtype == DType::kFloat32;
  const Scratch sums(stream, direct ? 1 : static_cast<std::size_t>(count) * sizeof(float));
  float* const to = direct ? x_grad.floats() : sums.as<float>();
  if (!direct || !x_grad.accumulate) LOCKSTEP_LAUNCH(zero, blocks_for(count), kThreads, 0, stream, to, count);
  add_gathered(dim, index, y_grad, to, x_grad.shape, stream);
  if (direct) return;
  with_float(x_grad.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((store_sums<T>), blocks_for(count), kThreads, 0, stream, to, x_grad.as<T>(), count,
                    x_grad.accumulate);
  });
}

// One thread per line, which stores in the order of the index: the last of several at one place remains.
template <typename T, typename Number> __global__ void scatter_lines(DividedLoop<2, Number> loop, Line line,
                                                                     const Index* index, const T* source,
                                                                     Index source_step, T* y, Index lines) {
  for (Index l = first_item(); l < lines; l += stride_of_grid()) {
    const Offsets<2> at = offsets_at(loop, l);
    for (Index i = 0; i < line.n; ++i) {
      const Index from = at.of[0] + i * line.index_step, place = index[from];
      if (place < 0 || place >= line.bound)
        write(y[at.of[1]], nanf(""));
      else
        y[at.of[1] + place * line.x_step] = source[from * source_step];
    }
  }
}

void scatter(std::size_t dim, In index, In source, Out y, Stream& stream) {
  if (index.count() == 0 || y.count() == 0) return;
  with_lines(dim, index.shape, y.shape, [&]<typename Number>(const DividedLoop<2, Number>& loop, Index lines) {
    with_float(y.dtype, [&]<typename T>(T*) {
      LOCKSTEP_LAUNCH((scatter_lines<T, Number>), blocks_for(lines), kThreads, 0, stream, loop,
                      line_of(dim, index.shape, y.shape), index.as<Index>(), source.as<T>(),
                      source.shape.dims() == 0 ? Index{0} : Index{1}, y.as<T>(), lines);
    });
  });
}

}  // namespace

void copy_strided(const StridedCopy& copy, In in, Out out, Stream& stream) {
  const CopyLoop loop(copy.extents, {copy.in_strides, copy.out_strides});
  const Index count = loop.count();
  if (count == 0) return;
  if (out.accumulate)
    return with_float(out.dtype, [&]<typename T>(T*) {
      with_divided(loop, [&]<typename Number>(const DividedLoop<2, Number>& divided) {
        LOCKSTEP_LAUNCH((add_one<T, Number>), blocks_for(count), kThreads, 0, stream, divided,
                        in.as<T>() + copy.in_offset, out.as<T>() + copy.out_offset, count);
      });
    });
  switch (size_of(out.dtype)) {
    case 1: return run_copy<std::uint8_t>(loop, in.data, out.data, copy.in_offset, copy.out_offset, stream);
    case 2: return run_copy<std::uint16_t>(loop, in.data, out.data, copy.in_offset, copy.out_offset, stream);
    case 4: return run_copy<std::uint32_t>(loop, in.data, out.data, copy.in_offset, copy.out_offset, stream);
    default: return run_copy<std::uint64_t>(loop, in.data, out.data, copy.in_offset, copy.out_offset, stream);
  }
}

void use_movement(KernelTable& table) {
  table.copy_strided = copy_strided;
  table.gather = gather_along;
  table.gather_backward = gather_backward;
  table.scatter = scatter;
}

}  // namespace lockstep::cuda
