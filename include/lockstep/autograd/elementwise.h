// Elementwise functions of tensors. All operands of a call are on one device and have the same type, float32, float16
// or bfloat16 (use cast() to convert; under an AutoCast different types are converted to float32). The result has that
// type; it is computed in float32 and rounded once. All functions except comparisons are differentiable. Each throws
// InvalidArgument that names the operator, the argument, the expected value and the actual one.
#pragma once

#include <optional>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// How gelu() computes the normal distribution: exactly, by erf, or by the approximation of Hendrycks and Gimpel
// (arXiv:1606.08415, section 2), with which GPT-2 was trained.
enum class GeluApproximation { kNone, kTanh };

// Activations.
Tensor gelu(const Tensor& x, GeluApproximation approximation = GeluApproximation::kNone);  // x * P(X <= x), X normal
Tensor silu(const Tensor& x);                                                              // x * sigmoid(x)
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);                                   // 1 / (1 + e^-x)
Tensor leaky_relu(const Tensor& x, float negative_slope = 0.01f);  // x > 0 ? x : negative_slope * x
Tensor elu(const Tensor& x, float alpha = 1);                      // x > 0 ? x : alpha * (e^x - 1)
Tensor softplus(const Tensor& x, float beta = 1,
                float threshold = 20);  // log(1 + e^(beta x)) / beta; x where beta x > threshold. beta > 0
Tensor mish(const Tensor& x);           // x * tanh(softplus(x))
Tensor relu6(const Tensor& x);          // clamp(x, 0, 6)
Tensor hardsigmoid(const Tensor& x);    // relu6(x + 3) / 6
Tensor hardswish(const Tensor& x);      // x * hardsigmoid(x)
// x (..., C), weight of 1 or C elements, float32, read in x's type: x > 0 ? x : weight * x. Differentiable in both. The
// channel is the last dimension.
Tensor prelu(const Tensor& x, const Tensor& weight);
// Gated linear unit (Dauphin et al. 2017): a * sigmoid(b) for the two halves of x along `dim`.
Tensor glu(const Tensor& x, int dim = -1);

// Arguments outside the domain give the result of <cmath>: NaN or infinity.
Tensor exp(const Tensor& x);
Tensor ln(const Tensor& x);  // PyTorch's log(): lockstep::log is the namespace of messages
Tensor sqrt(const Tensor& x);
Tensor pow(const Tensor& x, float exponent);
Tensor abs(const Tensor& x);  // gradient 0 at 0
Tensor neg(const Tensor& x);
Tensor reciprocal(const Tensor& x, float numerator = 1);  // numerator / x
Tensor rsqrt(const Tensor& x);                            // 1 / sqrt(x)
Tensor expm1(const Tensor& x);                            // e^x - 1, precise near 0
Tensor log1p(const Tensor& x);                            // log(1 + x), precise near 0
Tensor erf(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
// x, but at least `min` and at most `max`; one of them may be left out: clamp(x, {}, 1). NaN stays. The gradient is 0
// where a bound is reached. Throws InvalidArgument for no bound.
Tensor clamp(const Tensor& x, std::optional<float> min, std::optional<float> max = {});
// Gradient 0.
Tensor sign(const Tensor& x);  // 1, 0 or -1; 0 for NaN
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);  // to the nearest whole number, from the middle to the even one

// The operands have equal shapes, or shapes that NumPy can broadcast: dimensions are aligned at the last one, missing
// dimensions count as extent 1, and an operand of extent 1 is repeated. The gradient of an operand is summed over the
// dimensions in which it was repeated.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
// Gradients are PyTorch's. For the base: 0 where the exponent is 0. For the exponent: 0 where the base is 0 and the
// exponent is not negative; NaN where the base is negative.
Tensor pow(const Tensor& base, const Tensor& exponent);
Tensor pow(float base, const Tensor& exponent);
Tensor add(const Tensor& x, float constant);
// The larger, or smaller, of two elements; NaN if one is. Where they are equal, half of the gradient goes to each. For
// a constant operand see clamp().
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

// Comparisons return a mask of broadcast shape: uint8, 1 where the relation holds and 0 elsewhere. Where an operand is
// NaN, the relation is false, except that ne() is true. Not differentiable.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
// Comparison with a constant, for example gt(x, 0).
Tensor eq(const Tensor& x, float constant);
Tensor ne(const Tensor& x, float constant);
Tensor gt(const Tensor& x, float constant);
Tensor ge(const Tensor& x, float constant);
Tensor lt(const Tensor& x, float constant);
Tensor le(const Tensor& x, float constant);

// Selects a where the condition (uint8 or int8) is not 0, and b elsewhere; all three are broadcast to one shape.
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

// x += y is x = x + y: the handle x refers to a new result, which is recorded, and the old values stay where other
// handles see them; the result has x's type. In PyTorch it writes to the memory. Throws InvalidArgument, also under
// NoGrad, for a leaf that requires a gradient and for a module's parameter or buffer, because the module and the
// optimizer would keep the old tensor; and if the result would have another shape than x.
Tensor& operator+=(Tensor& x, const Tensor& y);
Tensor& operator-=(Tensor& x, const Tensor& y);
Tensor& operator*=(Tensor& x, const Tensor& y);
Tensor& operator/=(Tensor& x, const Tensor& y);
Tensor& operator+=(Tensor& x, float constant);
Tensor& operator-=(Tensor& x, float constant);
Tensor& operator*=(Tensor& x, float factor);
Tensor& operator/=(Tensor& x, float divisor);

// Masks, as by gt() and the others. There is no == and !=, because a Tensor is a handle: code that compares handles,
// such as std::find, would take the mask for a bool. Use eq() and ne(), and is_same() for handles.
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator>(const Tensor& x, float constant) { return gt(x, constant); }
inline Tensor operator>=(const Tensor& x, float constant) { return ge(x, constant); }
inline Tensor operator<(const Tensor& x, float constant) { return lt(x, constant); }
inline Tensor operator<=(const Tensor& x, float constant) { return le(x, constant); }
inline Tensor operator>(float constant, const Tensor& x) { return lt(x, constant); }
inline Tensor operator>=(float constant, const Tensor& x) { return le(x, constant); }
inline Tensor operator<(float constant, const Tensor& x) { return gt(x, constant); }
inline Tensor operator<=(float constant, const Tensor& x) { return ge(x, constant); }

}  // namespace lockstep
#pragma GCC visibility pop
