// Mixed precision: matrix products and the operators after them compute in 16 bits; weights and their gradients stay
// float32.
//
//   AutoCast half(DType::kBFloat16);
//   auto loss = cross_entropy(model(images), labels);  // float32 again
//
// Operators compute in the type of their activations. Under an AutoCast they follow torch.autocast's lists, but for the
// norms: convolutions, linear, matmul and attention convert a float32 input to 16 bits, and embedding returns its rows
// in 16 bits; softmax, exp, ln, pow, sum and losses convert to float32, but softmax_cross_entropy with labels reads 16
// bits as they are; norms keep the type of their input; operands of different types are converted to float32. Weights
// and biases stay float32: an operator makes the 16-bit copies that it reads, and its backward writes float32 gradients
// directly into their slots. Gradients of activations have the type of the activations. docs/gpu.md has a table of all
// operators.
#pragma once

#include <string_view>

#include "lockstep/core/dtype.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Affects the operators of this thread as long as the object lives; the innermost AutoCast applies. kFloat32 turns
// mixed precision off. Throws InvalidArgument for any type other than kFloat32, kFloat16 and kBFloat16. Backward does
// not need an AutoCast: it uses the types on the tape.
class AutoCast {
 public:
  explicit AutoCast(DType type);
  ~AutoCast();
  AutoCast(const AutoCast&) = delete;
  AutoCast& operator=(const AutoCast&) = delete;
  static DType active();  // kFloat32 if no AutoCast is active

 private:
  DType before_;
};

// Parses the value of a flag: "float32", "bfloat16", "float16", or their short forms "fp32", "bf16", "fp16". Throws
// InvalidArgument that lists them.
DType autocast_type(std::string_view name);

}  // namespace lockstep
#pragma GCC visibility pop
