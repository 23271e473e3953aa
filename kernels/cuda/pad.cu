// Adds zeros around images, or removes them: cuDNN pads both sides of an image equally, SAME does not always.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/pad.h"

namespace lockstep::cuda {

namespace {

template <typename T>
__global__ void shift_pixels(ImageShift shift, const T* in, T* out, bool accumulate, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Index channel = i % shift.channels, pixel = i / shift.channels;
    const Index column = pixel % shift.out_width - shift.left,
                row = pixel / shift.out_width % shift.out_height - shift.top;
    const Index image = pixel / shift.out_width / shift.out_height;
    float value = 0;
    if (row >= 0 && row < shift.in_height && column >= 0 && column < shift.in_width)
      value = widen(in[((image * shift.in_height + row) * shift.in_width + column) * shift.channels + channel]);
    store(out[i], value, accumulate);
  }
}

}  // namespace

void shift_images(const ImageShift& shift, In in, Out out, Stream& stream) {
  const Index count = shift.batch * shift.out_height * shift.out_width * shift.channels;
  with_float(in.dtype, [&]<typename T>(T*) {
    if (count > 0)
      LOCKSTEP_LAUNCH((shift_pixels<T>), blocks_for(count), kThreads, 0, stream, shift, in.as<T>(), out.as<T>(),
                      out.accumulate, count);
  });
}

}  // namespace lockstep::cuda
