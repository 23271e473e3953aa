// Losses that are sums over elements.
//
// There are sixteen partial sums, added at the end in a fixed order: the same bits from every build.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/squares.h"
#include "kernels/cpu/math/vector_math.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

constexpr Index kSums = 16;

LOCKSTEP_ALWAYS_INLINE float squared_error(float x, float t) { return (x - t) * (x - t); }
LOCKSTEP_ALWAYS_INLINE float squared_error_by_x(float x, float t) { return 2.0F * (x - t); }

LOCKSTEP_ALWAYS_INLINE float absolute_error(float x, float t) { return vector_math::abs(x - t); }
LOCKSTEP_ALWAYS_INLINE float absolute_error_by_x(float x, float t) {
  const float of_unequal = x > t ? 1.0F : -1.0F;
  return ((x > t) | (x < t)) ? of_unequal : x - t;  // 0 if equal, NaN for NaN
}

LOCKSTEP_ALWAYS_INLINE float binary_cross_entropy_by_x(float x, float t) { return vector_math::sigmoid(x) - t; }

// The sum of the elements' losses.
#define LOCKSTEP_ELEMENTS_SUM(name)                                                                                 \
  LOCKSTEP_CPU_DISPATCH(double, sum_of_##name, (const float* x, const float* t, Index count), (x, t, count), {      \
    double sums[kSums] = {};                                                                                        \
    Index i = 0;                                                                                                    \
    for (; i + kSums <= count; i += kSums)                                                                          \
      for (Index lane = 0; lane < kSums; ++lane) sums[lane] += static_cast<double>(name(x[i + lane], t[i + lane])); \
    for (; i < count; ++i) sums[i % kSums] += static_cast<double>(name(x[i], t[i]));                                \
    double total = 0;                                                                                               \
    for (Index lane = 0; lane < kSums; ++lane) total += sums[lane];                                                 \
    return total;                                                                                                   \
  })
LOCKSTEP_ELEMENTS_SUM(squared_error)
LOCKSTEP_ELEMENTS_SUM(absolute_error)
#undef LOCKSTEP_ELEMENTS_SUM

// The gradient of each element.
#define LOCKSTEP_ELEMENTS_GRADIENT(name)                                                                           \
  LOCKSTEP_CPU_DISPATCH(void, name##_gradient,                                                                     \
                        (const float* x, const float* t, float factor, bool accumulate, float* grad, Index count), \
                        (x, t, factor, accumulate, grad, count), {                                                 \
                          if (accumulate) {                                                                        \
                            LOCKSTEP_INDEPENDENT_ITERATIONS                                                        \
                            for (Index i = 0; i < count; ++i) grad[i] += name##_by_x(x[i], t[i]) * factor;         \
                          } else {                                                                                 \
                            LOCKSTEP_INDEPENDENT_ITERATIONS                                                        \
                            for (Index i = 0; i < count; ++i) grad[i] = name##_by_x(x[i], t[i]) * factor;          \
                          }                                                                                        \
                        })
LOCKSTEP_ELEMENTS_GRADIENT(squared_error)
LOCKSTEP_ELEMENTS_GRADIENT(absolute_error)
LOCKSTEP_ELEMENTS_GRADIENT(binary_cross_entropy)
#undef LOCKSTEP_ELEMENTS_GRADIENT

// Binary cross entropy is max(x, 0) - x t + log(1 + z) with z = e^-|x|. One logarithm serves many elements: it is taken
// of the product of their 1 + z, each at most 2. The excess of the product over 1 is stored, so that sums of small z
// keep their precision.
constexpr Index kPiece = 512, kPiecesOfALogarithm = 16;  // 512 factors per lane: a product below 2^512

LOCKSTEP_CPU_DISPATCH(void, add_binary_cross_entropies,
                      (const float* x, const float* t, Index count, double* sums, double* excess),
                      (x, t, count, sums, excess), {
                        float linear[kPiece];
                        float powers[kPiece];
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) {
                          const float clamped = x[i] < 0 ? 0.0F : x[i];
                          linear[i] = clamped - x[i] * t[i];
                          powers[i] = vector_math::normal_exp(-vector_math::abs(x[i]));
                        }
                        Index end = count;
                        for (; end % kSums != 0; ++end) linear[end] = powers[end] = 0;
                        double own_sums[kSums];
                        double own_excess[kSums];
                        for (Index lane = 0; lane < kSums; ++lane)
                          own_sums[lane] = sums[lane], own_excess[lane] = excess[lane];
                        for (Index i = 0; i < end; i += kSums)
                          for (Index lane = 0; lane < kSums; ++lane) {
                            const double z = powers[i + lane];
                            own_sums[lane] += static_cast<double>(linear[i + lane]);
                            own_excess[lane] += own_excess[lane] * z + z;
                          }
                        for (Index lane = 0; lane < kSums; ++lane)
                          sums[lane] = own_sums[lane], excess[lane] = own_excess[lane];
                      })

double sum_of_binary_cross_entropy(const float* x, const float* t, Index count) {
  double sums[kSums] = {}, total = 0;
  for (Index i = 0; i < count;) {
    double excess[kSums] = {};
    for (Index piece = 0; piece < kPiecesOfALogarithm && i < count; ++piece, i += kPiece)
      add_binary_cross_entropies(x + i, t + i, std::min(kPiece, count - i), sums, excess);
    for (const double above_one : excess) total += std::log1p(above_one);
  }
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

LOCKSTEP_CPU_DISPATCH(double, sum_of_squares, (const float* x, Index count), (x, count), {
  double sums[kSquareSums] = {};
  add_squares(x, count, sums);
  return total_of(sums);
})

namespace {

using SumOf = double (*)(const float* x, const float* t, Index count);
using Gradient = void (*)(const float* x, const float* t, float factor, bool accumulate, float* grad, Index count);

template <SumOf sum> void loss_of_elements(In x, In target, bool mean, Out loss, Stream&) {
  const double total = sum(x.floats(), target.floats(), x.count());
  *loss.floats() = static_cast<float>(mean ? total / static_cast<double>(x.count()) : total);
}

float factor_of(In x, In loss_grad, bool mean) {
  return mean ? static_cast<float>(*loss_grad.floats() / static_cast<double>(x.count())) : *loss_grad.floats();
}

// For losses in which x and target have the same role.
template <Gradient gradient>
void symmetric_gradients(In x, In target, In loss_grad, bool mean, Out x_grad, Out target_grad, Stream&) {
  const float factor = factor_of(x, loss_grad, mean), *const from = x.floats(), *const to = target.floats();
  if (x_grad) gradient(from, to, factor, x_grad.accumulate, x_grad.floats(), x.count());
  if (target_grad) gradient(to, from, factor, target_grad.accumulate, target_grad.floats(), x.count());
}

void binary_cross_entropy_backward(In x, In target, In loss_grad, bool mean, Out x_grad, Out target_grad,
                                   Stream& stream) {
  const float factor = factor_of(x, loss_grad, mean);
  if (x_grad)
    binary_cross_entropy_gradient(x.floats(), target.floats(), factor, x_grad.accumulate, x_grad.floats(), x.count());
  if (target_grad) cpu_device().kernels().scale(x, -factor, target_grad, stream);
}

void l2_loss(In x, Out loss, Stream&) {
  *loss.floats() = static_cast<float>(sum_of_squares(x.floats(), x.count()) / 2);
}

}  // namespace

void use_loss(KernelTable& table) {
  table.mse_loss = loss_of_elements<sum_of_squared_error>;
  table.mse_loss_backward = symmetric_gradients<squared_error_gradient>;
  table.l1_loss = loss_of_elements<sum_of_absolute_error>;
  table.l1_loss_backward = symmetric_gradients<absolute_error_gradient>;
  table.binary_cross_entropy_with_logits = loss_of_elements<sum_of_binary_cross_entropy>;
  table.binary_cross_entropy_with_logits_backward = binary_cross_entropy_backward;
  table.l2_loss = l2_loss;
}

}  // namespace lockstep::fast
