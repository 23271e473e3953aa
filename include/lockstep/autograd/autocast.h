// Mixed precision: products and what follows them in 16 bits, weights and their gradients in float32.
//
//   AutoCast half(DType::kBFloat16);
//   auto loss = cross_entropy(model(images), labels);  // float32 again
//
// Operators compute in the type of their activations. Under an AutoCast they follow torch.autocast's lists:
// convolutions, linear, matmul and attention take a float32 input as a 16-bit copy, and embedding gives its rows in 16
// bits; softmax, norms, exp, ln, pow, sum and losses widen; operands of unlike types are taken in float32. Weights and
// biases stay float32: an operator makes the 16-bit copies it reads, and its backward writes float32 gradients,
// straight into their slots. Gradients of activations have the activations' type. docs/precision.md has a table of all
// operators.
#pragma once

#include <string_view>

#include "lockstep/core/dtype.h"

#pragma GCC visibility push(default)
namespace lockstep {

// For operators of this thread while it lives; the innermost counts. kFloat32 turns it off. InvalidArgument for any
// other type but kFloat16 and kBFloat16. Backward needs none: it follows the tape.
class AutoCast {
 public:
  explicit AutoCast(DType type);
  ~AutoCast();
  AutoCast(const AutoCast&) = delete;
  AutoCast& operator=(const AutoCast&) = delete;
  static DType active();  // kFloat32: none

 private:
  DType before_;
};

// "float32", "bfloat16", "float16", or in short "fp32", "bf16", "fp16": for a flag. Throws InvalidArgument that lists
// them.
DType autocast_type(std::string_view name);

}  // namespace lockstep
#pragma GCC visibility pop
