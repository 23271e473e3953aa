// Convolutions by cuDNN (cudnn_convolution.h), with bias and ReLU in the same graph where cuDNN supports that. If cuDNN
// has no engine: 16-bit convolutions run in float32; others as a product, see columns.h, or in groups by our own
// kernels, see grouped.h; dilated ones by a kernel with zeros between its taps. Images whose two sides have different
// padding are padded by our own kernel.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cudnn_convolution.h"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/padded_images.h"
#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

namespace {

Index rows_of_y(const Conv2dShape& s) { return s.batch * s.out_height * s.out_width; }
OutputView writable(In view) { return {const_cast<void*>(view.data), view.dtype, view.shape}; }

// x, weight and y have the same type; the one that the direction computes is written, the others are read. Declared
// here because it and run_in_float32() call each other.
void run(Direction direction, const Conv2dShape& shape, In x, In weight, In bias, bool relu_after, In y,
         Stream& stream);

void run_in_float32(Direction direction, const Conv2dShape& shape, In x, In weight, In y, Stream& stream) {
  struct Wide {
    Wide(In narrow, bool is_result, Stream& stream)
        : narrow(writable(narrow)),
          is_result(is_result),
          memory(stream, static_cast<std::size_t>(narrow.count()) * sizeof(float)),
          floats(memory.as<float>(), narrow.shape) {}
    OutputView narrow;
    bool is_result;
    Scratch memory;
    OutputView floats;
  };
  const Wide all[] = {{x, direction == Direction::kData, stream},
                      {weight, direction == Direction::kWeights, stream},
                      {y, direction == Direction::kForward, stream}};
  for (const Wide& each : all)
    if (!each.is_result) convert(each.narrow, each.floats, stream);
  run(direction, shape, all[0].floats, all[1].floats, {}, false, all[2].floats, stream);
  for (const Wide& each : all)
    if (each.is_result) convert(each.floats, each.narrow, stream);
}

// A dilated convolution as one without dilation, whose weights are zero between the taps.
void run_spread(Direction direction, const Conv2dShape& shape, In x, In weight, In y, Stream& stream) {
  Conv2dShape spread = shape;
  spread.kernel_height = shape.reach_height(), spread.kernel_width = shape.reach_width();
  spread.dilation_height = spread.dilation_width = 1;
  const Shape taps{shape.out_channels, shape.kernel_height, shape.kernel_width, shape.group_channels()},
      all{shape.out_channels, spread.kernel_height, spread.kernel_width, shape.group_channels()};
  const Scratch memory(stream, static_cast<std::size_t>(all.count()) * sizeof(float));
  const OutputView zeros(memory.as<float>(), all);
  Strides among_all = strides_of(all);
  among_all[1] *= shape.dilation_height, among_all[2] *= shape.dilation_width;
  if (direction == Direction::kWeights) {
    run(direction, spread, x, zeros, {}, false, y, stream);
    return copy_strided({taps, among_all, strides_of(taps)}, zeros, writable(weight), stream);
  }
  fill(zeros, 0, stream);
  copy_strided({taps, strides_of(taps), among_all}, weight, zeros, stream);
  run(direction, spread, x, zeros, {}, false, y, stream);
}

void run_in_groups(Direction direction, const Conv2dShape& shape, In x, In weight, In y, Stream& stream) {
  switch (direction) {
    case Direction::kForward: return grouped_forward(shape, x.floats(), weight.floats(), writable(y).floats(), stream);
    case Direction::kData:
      return grouped_backward_data(shape, y.floats(), weight.floats(), writable(x).floats(), stream);
    case Direction::kWeights:
      return grouped_backward_weights(shape, x.floats(), y.floats(), writable(weight).floats(), stream);
  }
}

void run_as_product(Direction direction, const Conv2dShape& shape, In x, In weight, In y, Stream& stream) {
  if (shape.is_dilated()) return run_spread(direction, shape, x, weight, y, stream);
  if (shape.groups > 1) return run_in_groups(direction, shape, x, weight, y, stream);
  switch (direction) {
    case Direction::kForward: return product_forward(shape, x.floats(), weight.floats(), writable(y).floats(), stream);
    case Direction::kData:
      return product_backward_data(shape, y.floats(), weight.floats(), writable(x).floats(), stream);
    case Direction::kWeights:
      return product_backward_weights(shape, x.floats(), y.floats(), writable(weight).floats(), stream);
  }
}

void run(Direction direction, const Conv2dShape& shape, In x, In weight, In bias, bool relu_after, In y,
         Stream& stream) {
  for (const InputView& other : {weight, bias, y}) require_type(x.dtype, other);
  const bool has_bias = static_cast<bool>(bias);
  if (run_by_cudnn({direction, shape, x.dtype, has_bias, relu_after}, x, weight, bias, y, stream)) return;
  if (!has_bias && !relu_after)
    return x.dtype == DType::kFloat32 ? run_as_product(direction, shape, x, weight, y, stream)
                                      : run_in_float32(direction, shape, x, weight, y, stream);
  run(direction, shape, x, weight, {}, false, y, stream);
  if (bias) add_bias(writable(y), bias, stream);
  if (relu_after) relu(y, writable(y), stream);
}

void conv2d(const Conv2dShape& shape, In x, In weight, In bias, bool relu_after, Out y, Stream& stream) {
  if (rows_of_y(shape) == 0) return;
  if (!is_padded_unlike(shape)) return run(Direction::kForward, shape, x, weight, bias, relu_after, y, stream);
  PaddedImages images(x.dtype, shape, stream);
  images.put_in(x);
  run(Direction::kForward, images.shape(), images.view(), weight, bias, relu_after, y, stream);
}

// cuDNN cannot add to a result, so sums use scratch memory.
void conv2d_backward_data(const Conv2dShape& shape, In y_grad, In weight, Out x_grad, Stream& stream) {
  const Index count = size_of_x(shape);
  if (count == 0) return;
  if (is_padded_unlike(shape)) {
    PaddedImages images(x_grad.dtype, shape, stream);
    run(Direction::kData, images.shape(), images.view(), weight, {}, false, y_grad, stream);
    return images.take_out(x_grad);
  }
  if (!x_grad.accumulate) return run(Direction::kData, shape, x_grad, weight, {}, false, y_grad, stream);
  const Scratch memory(stream, static_cast<std::size_t>(count) * size_of(x_grad.dtype));
  const InputView fresh(memory.as<void>(), x_grad.dtype, x_grad.shape);
  run(Direction::kData, shape, fresh, weight, {}, false, y_grad, stream);
  convert(fresh, x_grad, stream);
}

void gradient_of_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Stream& stream) {
  if (rows_of_y(shape) == 0) {
    if (!weight_grad.accumulate) fill(weight_grad, 0, stream);
    return;
  }
  if (is_padded_unlike(shape)) {
    PaddedImages images(x.dtype, shape, stream);
    images.put_in(x);
    return gradient_of_weights(images.shape(), images.view(), y_grad, weight_grad, stream);
  }
  if (x.dtype == DType::kFloat32 && !weight_grad.accumulate)
    return run(Direction::kWeights, shape, x, weight_grad, {}, false, y_grad, stream);
  const Scratch memory(stream, static_cast<std::size_t>(weight_grad.count()) * size_of(x.dtype));
  const InputView fresh(memory.as<void>(), x.dtype, weight_grad.shape);
  run(Direction::kWeights, shape, x, fresh, {}, false, y_grad, stream);
  convert(fresh, weight_grad, stream);
}

void conv2d_backward_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad,
                             Stream& stream) {
  gradient_of_weights(shape, x, y_grad, weight_grad, stream);
  if (bias_grad) bias_backward(y_grad, bias_grad, stream);
}

}  // namespace

void use_conv2d(KernelTable& table) {
  table.conv2d = conv2d;
  table.conv2d_backward_data = conv2d_backward_data;
  table.conv2d_backward_weights = conv2d_backward_weights;
}

}  // namespace lockstep::cuda
