// The updates as vector loops with one pass over each tensor, at memory bandwidth. They use the formulas of the plain
// kernels and compute the same bits.
#include <bit>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/loops/shared_update.h"
#include "kernels/cpu/math/squares.h"
#include "kernels/updates/all.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

// Elements [begin, begin + count); `grad` points to their gradients.
template <typename Formula> LOCKSTEP_ALWAYS_INLINE void update_range(const UpdateTensor& tensor, const float* grad,
                                                                     Index begin, Index count, const Formula& formula) {
  float* const weight = tensor.weight + begin;
  float* states[3] = {};
  for (int k = 0; k < Formula::kStates; ++k) states[k] = tensor.states[k] + begin;
  float *const first = states[0], *const second = states[1], *const third = states[2];
  if constexpr (Formula::kStates == 0) {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index i = 0; i < count; ++i) formula(weight[i], grad[i]);
  } else if constexpr (Formula::kStates == 1) {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index i = 0; i < count; ++i) formula(weight[i], grad[i], first[i]);
  } else if constexpr (Formula::kStates == 2) {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index i = 0; i < count; ++i) formula(weight[i], grad[i], first[i], second[i]);
  } else {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index i = 0; i < count; ++i) formula(weight[i], grad[i], first[i], second[i], third[i]);
  }
}

template <typename Formula>
LOCKSTEP_ALWAYS_INLINE void update_shared(const UpdateTensor& tensor, const Formula& formula) {
  alignas(64) float mean[kChunk];
  const auto update = [&](Index begin, Index count) __attribute__((always_inline)) {
    average(*tensor.shared, begin, count, mean);
    clip(*tensor.shared, count, mean);
    update_range(tensor, mean, begin, count, formula);
    send(tensor, begin, count);
  };
  Index begin = 0;
  for (; begin + kChunk <= tensor.count; begin += kChunk) {
    prefetch_update<Formula::kStates>(tensor, begin);
    update(begin, kChunk);
  }
  update(begin, tensor.count - begin);
  end_sending();
}

template <typename Formula> LOCKSTEP_ALWAYS_INLINE void update_loop(const UpdateTensor& tensor, const Formula& given) {
  const Formula formula = given;  // a local copy, which the loop's stores cannot change
  tensor.shared == nullptr ? update_range(tensor, tensor.grad, 0, tensor.count, formula)
                           : update_shared(tensor, formula);
}

// LOCKSTEP_CPU_DISPATCH for templates: the formula is inlined into the loop of each instruction set.
template <typename Formula> void update_baseline(const UpdateTensor& tensor, const Formula& formula) {
  update_loop(tensor, formula);
}
#if defined(__x86_64__)
template <typename Formula> LOCKSTEP_TARGET_AVX2 void update_avx2(const UpdateTensor& tensor, const Formula& formula) {
  update_loop(tensor, formula);
}
template <typename Formula>
LOCKSTEP_TARGET_AVX512 void update_avx512(const UpdateTensor& tensor, const Formula& formula) {
  update_loop(tensor, formula);
}
template <typename Formula> void update_elements(const UpdateTensor& tensor, const Formula& formula) {
  switch (cpu_isa()) {
    case Isa::kAmx:
    case Isa::kAvx512: return update_avx512(tensor, formula);
    case Isa::kAvx2: return update_avx2(tensor, formula);
    default: return update_baseline(tensor, formula);
  }
}
#else
template <typename Formula> void update_elements(const UpdateTensor& tensor, const Formula& formula) {
  update_baseline(tensor, formula);
}
#endif

template <typename Params> void update(std::span<const UpdateTensor> tensors, const Params& params, Stream&) {
  if (updates::skips(params)) return;
  updates::with_formula(params, [&](auto use) {
    using Formula = typename decltype(use)::type;
    updates::for_each_tensor<Formula>(
        tensors, params, [](const UpdateTensor& tensor, const Formula& formula) { update_elements(tensor, formula); });
  });
}

// Infinity and NaN have the largest exponent.
LOCKSTEP_CPU_DISPATCH(bool, has_bad, (const float* grad, Index count), (grad, count), {
  std::uint32_t bad = 0;
  for (Index i = 0; i < count; ++i)
    bad |= (std::bit_cast<std::uint32_t>(grad[i]) & 0x7f800000U) == 0x7f800000U ? 1U : 0U;
  return bad != 0;
})

void find_bad_gradients(std::span<const UpdateTensor> tensors, LossScaleState* state, Stream&) {
  for (const UpdateTensor& tensor : tensors)
    if (has_bad(tensor.grad, tensor.count)) state->found_bad = 1;
}

void gradient_norm(std::span<const UpdateTensor> tensors, const NormParams& params, NormResult* result, Stream&) {
  double squares = 0;
  for (const UpdateTensor& tensor : tensors) squares += sum_of_squares(tensor.grad, tensor.count);
  *result = updates::norm_of(squares, params);
}

// The same bits as sum_of_squares() of the mean.
LOCKSTEP_CPU_DISPATCH(double, sum_of_mean_squares, (const SharedUpdate& update, Index count), (update, count), {
  alignas(64) float mean[kChunk];
  static_assert(kChunk % kSquareSums == 0);
  double sums[kSquareSums] = {};
  for (Index begin = 0; begin < count; begin += kChunk) {
    const Index piece = begin + kChunk <= count ? kChunk : count - begin;
    for (const float* grad : update.grads) prefetch_chunk(grad + begin);
    average(update, begin, piece, mean);
    add_squares(mean, piece, sums);
  }
  return total_of(sums);
})

void square_sums(std::span<const UpdateTensor> tensors, double* sums, Stream&) {
  for (const UpdateTensor& tensor : tensors)
    *sums++ = tensor.shared == nullptr ? sum_of_squares(tensor.grad, tensor.count)
                                       : sum_of_mean_squares(*tensor.shared, tensor.count);
}

}  // namespace

void use_updates(KernelTable& table) {
#define LOCKSTEP_UPDATE(name, Params) table.name = update<Params>;
#include "lockstep/core/operators.def"
  table.find_bad_gradients = find_bad_gradients;
  table.gradient_norm = gradient_norm;
  table.square_sums = square_sums;
}

}  // namespace lockstep::fast
