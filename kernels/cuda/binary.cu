// Binary functions, comparisons and selection, with broadcasting. If the operands have the result's shape, are scalars
// or repeat as rows, a thread moves 16 bytes at a time; otherwise it computes its operands' positions from their
// strides.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/binary_functions.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/offsets.cuh"

namespace lockstep::cuda {

namespace {

// An operand whose packs repeat after `period`; or a single element, which is repeated.
template <typename T, typename Number> struct Repeated {
  const T* data;
  bool is_single;
  Divisor<Number> period;
};

template <typename T, int count, typename Number>
__device__ inline Pack<T, count> pack_of(const Repeated<T, Number>& operand, Number i) {
  if (!operand.is_single)
    return reinterpret_cast<const Pack<T, count>*>(operand.data)[operand.period.divide(i).remainder];
  Pack<T, count> same;
#pragma unroll
  for (int j = 0; j < count; ++j) same.values[j] = *operand.data;
  return same;
}

// `out` may be an operand that does not repeat: the same thread reads each element before it writes it.
template <typename T, int count, typename Number>
__global__ void binary_packs(BinaryFunction function, Repeated<T, Number> a, Repeated<T, Number> b, T* out,
                             Index packs) {
  for (Index i = first_item(); i < packs; i += stride_of_grid()) {
    const auto at = static_cast<Number>(i);
    const Pack<T, count> x = pack_of<T, count>(a, at), y = pack_of<T, count>(b, at);
    Pack<T, count> result;
#pragma unroll
    for (int j = 0; j < count; ++j) write(result.values[j], value_of(function, widen(x.values[j]), widen(y.values[j])));
    reinterpret_cast<Pack<T, count>*>(out)[i] = result;
  }
}

template <typename T, typename Number> __global__ void binary_strided(BinaryFunction function,
                                                                      DividedLoop<2, Number> loop, const T* a,
                                                                      const T* b, T* out, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Offsets<2> at = offsets_at(loop, i);
    write(out[i], value_of(function, widen(a[at.of[0]]), widen(b[at.of[1]])));
  }
}

template <typename T, typename Number> __global__ void compare_strided(Comparison comparison,
                                                                       DividedLoop<2, Number> loop, const T* a,
                                                                       const T* b, std::uint8_t* mask, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Offsets<2> at = offsets_at(loop, i);
    mask[i] = holds(comparison, widen(a[at.of[0]]), widen(b[at.of[1]])) ? 1 : 0;
  }
}

template <typename T, typename Number> __global__ void where_strided(DividedLoop<3, Number> loop,
                                                                     const std::uint8_t* condition, const T* a,
                                                                     const T* b, T* out, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Offsets<3> at = offsets_at(loop, i);
    out[i] = condition[at.of[0]] != 0 ? a[at.of[1]] : b[at.of[2]];
  }
}

StridedLoop<2> loop_over(In a, In b, const Shape& out) {
  return {out, {broadcast_strides(a.shape, out), broadcast_strides(b.shape, out)}};
}

// True if the operand `array` repeats as packs of `pack` elements do; then sets the period, in packs.
bool repeats_in_packs(const StridedLoop<2>& loop, int array, Index pack, Index* period) {
  const Index length = loop.extent(0), step = loop.stride(array, 0), row = loop.stride(array, 1);
  if (loop.dims > 2) return false;
  *period = step == 0 && (loop.dims < 2 || row == 0) ? 0
            : loop.dims == 2 && row == 0             ? length / pack
                                                     : loop.count() / pack;
  if (*period == 0) return step == 0;
  return step == 1 && length % pack == 0 && (loop.dims < 2 || row == 0 || row == length);
}

template <typename T> void run_binary(BinaryFunction function, In a, In b, Out out, Stream& stream) {
  constexpr int kOf = 16 / sizeof(T);
  const StridedLoop<2> loop = loop_over(a, b, out.shape);
  const Index count = out.count();
  const T *const x = a.as<T>(), *const y = b.as<T>();
  Index x_period = 0, y_period = 0;
  const bool in_packs = repeats_in_packs(loop, 0, kOf, &x_period) && repeats_in_packs(loop, 1, kOf, &y_period) &&
                        count % kOf == 0 && (x_period == 0 || is_aligned_to_pack<T, kOf>(x)) &&
                        (y_period == 0 || is_aligned_to_pack<T, kOf>(y)) && is_aligned_to_pack<T, kOf>(out.as<T>());
  if (in_packs)
    with_index_of(count / kOf, [&]<typename Number>(Number) {
      const auto repeated = [](const T* data, Index period) {
        return Repeated<T, Number>{data, period == 0, Divisor<Number>(period)};
      };
      LOCKSTEP_LAUNCH((binary_packs<T, kOf, Number>), blocks_for(count / kOf), kThreads, 0, stream, function,
                      repeated(x, x_period), repeated(y, y_period), out.as<T>(), count / kOf);
    });
  else
    with_divided(loop, [&]<typename Number>(const DividedLoop<2, Number>& divided) {
      LOCKSTEP_LAUNCH((binary_strided<T, Number>), blocks_for(count), kThreads, 0, stream, function, divided, x, y,
                      out.as<T>(), count);
    });
}

void binary(BinaryFunction function, In a, In b, Out out, Stream& stream) {
  if (out.count() == 0) return;
  with_float(out.dtype, [&]<typename T>(T*) { run_binary<T>(function, a, b, out, stream); });
}

void compare(Comparison comparison, In a, In b, Out mask, Stream& stream) {
  const Index count = mask.count();
  if (count == 0) return;
  with_float(a.dtype, [&]<typename T>(T*) {
    with_divided(loop_over(a, b, mask.shape), [&]<typename Number>(const DividedLoop<2, Number>& loop) {
      LOCKSTEP_LAUNCH((compare_strided<T, Number>), blocks_for(count), kThreads, 0, stream, comparison, loop, a.as<T>(),
                      b.as<T>(), mask.as<std::uint8_t>(), count);
    });
  });
}

void where(In condition, In a, In b, Out out, Stream& stream) {
  const Index count = out.count();
  if (count == 0) return;
  const StridedLoop<3> loop(out.shape, {broadcast_strides(condition.shape, out.shape),
                                        broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape)});
  with_float(out.dtype, [&]<typename T>(T*) {
    with_divided(loop, [&]<typename Number>(const DividedLoop<3, Number>& divided) {
      LOCKSTEP_LAUNCH((where_strided<T, Number>), blocks_for(count), kThreads, 0, stream, divided,
                      static_cast<const std::uint8_t*>(condition.data), a.as<T>(), b.as<T>(), out.as<T>(), count);
    });
  });
}

}  // namespace

void use_binary(KernelTable& table) {
  table.binary = binary;
  table.compare = compare;
  table.where = where;
}

}  // namespace lockstep::cuda
