// Elementwise functions of tensors. Operands are float32, float16 or bfloat16, all of a call alike (cast() changes a
// type; under an AutoCast unlike ones are widened to float32), and on one device; results have their type, are computed
// in float32 and rounded once. All but comparisons are differentiable. Each throws InvalidArgument that names the
// operator, the argument, what came and what was expected.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// How gelu() computes the normal distribution: exactly (erf), or as Hendrycks and Gimpel approximate it
// (arXiv:1606.08415, section 2), which is what GPT-2 was trained with.
enum class GeluApproximation { kNone, kTanh };

// Activations.
Tensor gelu(const Tensor& x, GeluApproximation approximation = GeluApproximation::kNone);  // x * P(X <= x), X normal
Tensor silu(const Tensor& x);                                                              // x * sigmoid(x)
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);                                   // 1 / (1 + e^-x)
Tensor leaky_relu(const Tensor& x, float negative_slope = 0.01f);  // x > 0 ? x : negative_slope * x

// Outside of their domains the results are those of <cmath>: NaN, or infinite.
Tensor exp(const Tensor& x);
Tensor ln(const Tensor& x);  // PyTorch's log(): lockstep::log is the namespace of messages
Tensor sqrt(const Tensor& x);
Tensor pow(const Tensor& x, float exponent);
Tensor abs(const Tensor& x);  // gradient 0 at 0
Tensor neg(const Tensor& x);
Tensor reciprocal(const Tensor& x, float numerator = 1);  // numerator / x

// Two operands of equal shapes, or of shapes that NumPy broadcasts: dimensions are matched from the last one on,
// missing ones count as 1, and where one operand has extent 1 it is repeated. A gradient is summed over the dimensions
// in which its operand was repeated.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
// Gradients as PyTorch's: of the base 0 where the exponent is 0, of the exponent 0 where the base is 0 and the exponent
// is not negative, and NaN where the base is negative.
Tensor pow(const Tensor& base, const Tensor& exponent);
Tensor pow(float base, const Tensor& exponent);
Tensor add(const Tensor& x, float constant);

// Masks: uint8, 1 where it holds and 0 elsewhere, of broadcast operands. False where one is no number, but for ne().
// Not differentiable.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
// With a constant, say gt(x, 0).
Tensor eq(const Tensor& x, float constant);
Tensor ne(const Tensor& x, float constant);
Tensor gt(const Tensor& x, float constant);
Tensor ge(const Tensor& x, float constant);
Tensor lt(const Tensor& x, float constant);
Tensor le(const Tensor& x, float constant);

// condition (uint8 or int8) is not 0 ? a : b; all three are broadcast to one shape.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }
inline Tensor operator+(const Tensor& x, float constant) { return add(x, constant); }
inline Tensor operator+(float constant, const Tensor& x) { return add(x, constant); }
inline Tensor operator-(const Tensor& x, float constant) { return add(x, -constant); }
inline Tensor operator-(float constant, const Tensor& x) { return add(neg(x), constant); }
inline Tensor operator/(float numerator, const Tensor& x) { return reciprocal(x, numerator); }

}  // namespace lockstep
#pragma GCC visibility pop
