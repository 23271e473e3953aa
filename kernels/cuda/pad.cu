// Adds zeros around images, or removes them: cuDNN pads both sides of an image equally, SAME does not always.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/pad.h"
#include "kernels/cuda/windows.cuh"

namespace lockstep::cuda {

namespace {

template <typename T, typename Number> __global__ void shift_pixels(ImageShift shift, Extents<Number> extents,
                                                                    const T* in, T* out, bool accumulate, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Number> at = extents.position_of(static_cast<Number>(i));
    const Index row = at.row - shift.top, column = at.column - shift.left;
    float value = 0;
    if (row >= 0 && row < shift.in_height && column >= 0 && column < shift.in_width)
      value = widen(in[((at.image * shift.in_height + row) * shift.in_width + column) * shift.channels + at.item]);
    store(out[i], value, accumulate);
  }
}

}  // namespace

void shift_images(const ImageShift& shift, In in, Out out, Stream& stream) {
  const Index count = shift.batch * shift.out_height * shift.out_width * shift.channels;
  if (count == 0) return;
  with_float(in.dtype, [&]<typename T>(T*) {
    with_index_of(count, [&]<typename Number>(Number) {
      const Extents<Number> extents(shift.out_height, shift.out_width, shift.channels);
      LOCKSTEP_LAUNCH((shift_pixels<T, Number>), blocks_for(count), kThreads, 0, stream, shift, extents, in.as<T>(),
                      out.as<T>(), out.accumulate, count);
    });
  });
}

}  // namespace lockstep::cuda
