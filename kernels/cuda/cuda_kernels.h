// Operators of the CUDA device that its other operators call; these are entries of the kernel table, as defined in
// core/operators.def. Also the functions that add the kernels for layers above core. All other kernels are reached
// through the table.
#pragma once

#include "kernels/families.h"

namespace lockstep::cuda {

void fill(Out out, float value, Stream&);
void convert(In in, Out out, Stream&);
void relu(In x, Out y, Stream&);
void unary(const UnaryOperation& f, In x, Out y, Stream&);
void unary_backward(const UnaryOperation& f, In saved, In y_grad, Out x_grad, Stream&);

void copy_strided(const StridedCopy& copy, In in, Out out, Stream&);

void add_bias(Out y, In bias, Stream&);
void bias_backward(In y_grad, Out bias_grad, Stream&);

void matmul(In a, bool transpose_a, In b, bool transpose_b, Out c, Stream&);

void linear(In x, In weight, In bias, bool relu, Out y, Stream&);
void linear_backward_data(In y_grad, In weight, Out x_grad, Stream&);
void linear_backward_weights(In x, In y_grad, Out weight_grad, Out bias_grad, Stream&);

// Checks the type of an operand that is present (LOCKSTEP_CHECK). For code that passes memory to a library; other
// kernels get typed pointers from their views.
inline void require_type(DType type, In view) {
  if (view && view.dtype != type) internal::wrong_element_type(type, view.dtype, view.shape);
}

void require_lrn_channels(const LrnParams&);  // throws InvalidArgument: a row must fit into shared memory
inline constexpr std::int64_t kMostAttentionWidth = 256;
void require_attention_width(std::int64_t width);  // throws InvalidArgument: tiles of rows must fit into shared memory

// Families of layers above core.
void add_augment_kernels(KernelTable& table);
void add_int8_kernels(KernelTable& table);
void add_power_sgd_kernels(KernelTable& table);
void add_top_k_kernels(KernelTable& table);

}  // namespace lockstep::cuda
