// Max pooling, NHWC. Backward gathers: every input checks the windows that contain it for whether it was their maximum,
// so there are no atomics and results are reproducible bit for bit. A thread computes four adjacent channels where
// their number and the pointers allow it.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/windows.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kPooledTogether = 4;  // channels of a thread

// Among equal values the first in row-major order is chosen; NaN is larger than any number; padding is never chosen.
template <typename T, int pack, typename Of>
__global__ void max_pool(Of of, const T* x, T* y, std::uint16_t* argmax, Index items) {
  using Number = typename Of::Number;
  for (Index i = first_item(); i < items; i += stride_of_grid()) {
    const Position<Number> out = of.out.position_of(static_cast<Number>(i));
    const Number top = of.rows.begin_of(out.row), left = of.columns.begin_of(out.column);
    float best[pack];
    Number place[pack];
#pragma unroll
    for (int k = 0; k < pack; ++k) best[k] = -INFINITY, place[k] = -1;
#pragma unroll
    for (Number r = 0; r < of.rows.window.size(); ++r) {
      if (!of.rows.is_inside(top + r)) continue;
#pragma unroll
      for (Number s = 0; s < of.columns.window.size(); ++s) {
        if (!of.columns.is_inside(left + s)) continue;
        const auto values =
            pack_at<pack>(x + pack * static_cast<Index>(of.in.item_at({out.image, top + r, left + s, out.item})));
#pragma unroll
        for (int k = 0; k < pack; ++k) {
          const float value = widen(values.values[k]);
          if (place[k] >= 0 && !(value > best[k]) && !isnan(value)) continue;
          best[k] = value;
          place[k] = r * of.columns.window.size() + s;
        }
      }
    }
    Pack<T, pack> largest;
    Pack<std::uint16_t, pack> places;
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      write(largest.values[k], best[k]);
      places.values[k] = static_cast<std::uint16_t>(place[k]);
    }
    pack_at<pack>(y + i * pack) = largest;
    pack_at<pack>(argmax + i * pack) = places;
  }
}

template <typename T, int pack, typename Of> __global__ void max_pool_backward(Of of, const T* y_grad,
                                                                               const std::uint16_t* argmax, T* x_grad,
                                                                               bool accumulate, Index items) {
  using Number = typename Of::Number;
  for (Index i = first_item(); i < items; i += stride_of_grid()) {
    const Position<Number> in = of.in.position_of(static_cast<Number>(i));
    const auto rows = of.rows.outputs_of(in.row), columns = of.columns.outputs_of(in.column);
    float sums[pack] = {};
#pragma unroll
    for (Number a = 0; a < of.rows.window.most(rows.end - rows.begin); ++a) {
      const Number r = rows.begin + a;
      if (r >= rows.end) break;
#pragma unroll
      for (Number b = 0; b < of.columns.window.most(columns.end - columns.begin); ++b) {
        const Number s = columns.begin + b;
        if (s >= columns.end) break;
        const Number place =
            (in.row - of.rows.begin_of(r)) * of.columns.window.size() + in.column - of.columns.begin_of(s);
        const Index out = pack * static_cast<Index>(of.out.item_at({in.image, r, s, in.item}));
        const auto places = pack_at<pack>(argmax + out);
        const auto grads = pack_at<pack>(y_grad + out);
#pragma unroll
        for (int k = 0; k < pack; ++k)
          if (places.values[k] == place) sums[k] += widen(grads.values[k]);
      }
    }
    Pack<T, pack> result;
    if (accumulate) result = pack_at<pack>(x_grad + i * pack);
#pragma unroll
    for (int k = 0; k < pack; ++k) store(result.values[k], sums[k], accumulate);
    pack_at<pack>(x_grad + i * pack) = result;
  }
}

bool has_windows(const Pool2dShape& s, Index size, Index stride) {
  return s.window_height == size && s.window_width == size && s.stride_height == stride && s.stride_width == stride;
}

Index elements_of_x(const Pool2dShape& s) { return s.batch * s.in_height * s.in_width * s.channels; }
Index elements_of_y(const Pool2dShape& s) { return s.batch * s.out_height * s.out_width * s.channels; }

// Calls `call` with the channels of a thread and the Windows of a shape. Tensors of 2^31 elements or more have one
// channel per thread and any window.
template <typename Call> void with_windows(const Pool2dShape& s, bool aligned, Call&& call) {
  constexpr int kPack = kPooledTogether;
  if (largest_number(s, std::max(elements_of_x(s), elements_of_y(s))) >= kShortIndices)
    call.template operator()<1>(AnyWindows<Index>(s, 1));
  else if (!aligned || s.channels % kPack != 0)
    call.template operator()<1>(AnyWindows<ShortIndex>(s, 1));
  else if (has_windows(s, 2, 2))
    call.template operator()<kPack>(Windows<ShortIndex, FixedWindow<2, 2>>(s, kPack));
  else if (has_windows(s, 3, 2))
    call.template operator()<kPack>(Windows<ShortIndex, FixedWindow<3, 2>>(s, kPack));
  else
    call.template operator()<kPack>(AnyWindows<ShortIndex>(s, kPack));
}

template <typename T> bool is_pooled_together(const T* one, const T* other, const std::uint16_t* argmax) {
  constexpr int kPack = kPooledTogether;
  return is_aligned_to_pack<T, kPack>(one) && is_aligned_to_pack<T, kPack>(other) &&
         is_aligned_to_pack<std::uint16_t, kPack>(argmax);
}

void max_pool2d(const Pool2dShape& shape, In x, Out y, std::uint16_t* argmax, Stream& stream) {
  const Index count = elements_of_y(shape);
  if (count == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    with_windows(shape, is_pooled_together<T>(x.as<T>(), y.as<T>(), argmax), [&]<int pack, typename Of>(const Of& of) {
      LOCKSTEP_LAUNCH((max_pool<T, pack, Of>), blocks_for(count / pack), kThreads, 0, stream, of, x.as<T>(), y.as<T>(),
                      argmax, count / pack);
    });
  });
}

void max_pool2d_backward(const Pool2dShape& shape, In y_grad, const std::uint16_t* argmax, Out x_grad, Stream& stream) {
  const Index count = elements_of_x(shape);
  if (count == 0) return;
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    with_windows(shape, is_pooled_together<T>(y_grad.as<T>(), x_grad.as<T>(), argmax),
                 [&]<int pack, typename Of>(const Of& of) {
                   LOCKSTEP_LAUNCH((max_pool_backward<T, pack, Of>), blocks_for(count / pack), kThreads, 0, stream, of,
                                   y_grad.as<T>(), argmax, x_grad.as<T>(), x_grad.accumulate, count / pack);
                 });
  });
}

}  // namespace

void use_pool(KernelTable& table) {
  table.max_pool2d = max_pool2d;
  table.max_pool2d_backward = max_pool2d_backward;
}

}  // namespace lockstep::cuda
