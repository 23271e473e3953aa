// The updates, element by element, in float. Every faster kernel must reproduce them bit for bit, so that ranks on
// different CPUs keep the same weights. tests/optim compares the formulas with others in double.
#include <cmath>

#include "kernels/cpu/reference/reference.h"
#include "kernels/updates/all.h"

namespace lockstep::reference {

namespace {

float mean_of(std::span<const float* const> grads, Index i) {
  float sum = grads[0][i];
  for (const float* grad : grads.subspan(1)) sum += grad[i];
  return sum * (1 / static_cast<float>(grads.size()));
}

float gradient_of(const UpdateTensor& tensor, Index i) {
  return tensor.shared == nullptr ? tensor.grad[i] : mean_of(tensor.shared->grads, i);
}

template <typename Formula> void update_elements(const UpdateTensor& tensor, const Formula& formula) {
  const auto& [first, second, third] = tensor.states;
  for (Index i = 0; i < tensor.count; ++i) {
    float grad = gradient_of(tensor, i);
    if (tensor.shared != nullptr && tensor.shared->clip_factor != nullptr) grad *= *tensor.shared->clip_factor;
    if constexpr (Formula::kStates == 0) formula(tensor.weight[i], grad);
    if constexpr (Formula::kStates == 1) formula(tensor.weight[i], grad, first[i]);
    if constexpr (Formula::kStates == 2) formula(tensor.weight[i], grad, first[i], second[i]);
    if constexpr (Formula::kStates == 3) formula(tensor.weight[i], grad, first[i], second[i], third[i]);
    if (tensor.shared == nullptr) continue;
    for (float* copy : tensor.shared->copies) copy[i] = tensor.weight[i];
  }
}

template <typename Params> void update(std::span<const UpdateTensor> tensors, const Params& params, Stream&) {
  if (updates::skips(params)) return;
  updates::with_formula(params, [&](auto use) {
    using Formula = typename decltype(use)::type;
    updates::for_each_tensor<Formula>(
        tensors, params, [](const UpdateTensor& tensor, const Formula& formula) { update_elements(tensor, formula); });
  });
}

void gradient_norm(std::span<const UpdateTensor> tensors, const NormParams& params, NormResult* result, Stream&) {
  double squares = 0;
  for (const UpdateTensor& tensor : tensors)
    for (Index i = 0; i < tensor.count; ++i) squares += static_cast<double>(tensor.grad[i]) * tensor.grad[i];
  *result = updates::norm_of(squares, params);
}

void square_sums(std::span<const UpdateTensor> tensors, double* sums, Stream&) {
  for (const UpdateTensor& tensor : tensors) {
    double squares = 0;
    for (Index i = 0; i < tensor.count; ++i) {
      const float grad = gradient_of(tensor, i);
      squares += static_cast<double>(grad) * grad;
    }
    *sums++ = squares;
  }
}

void norm_of_sums(const double* sums, Index count, const NormParams& params, NormResult* result, Stream&) {
  double squares = 0;
  for (Index i = 0; i < count; ++i) squares += sums[i];
  *result = updates::norm_of(squares, params);
}

void find_bad_gradients(std::span<const UpdateTensor> tensors, LossScaleState* state, Stream&) {
  for (const UpdateTensor& tensor : tensors)
    for (Index i = 0; i < tensor.count; ++i)
      if (!std::isfinite(tensor.grad[i])) state->found_bad = 1;
}

void begin_loss_scale(const LossScaleRule& rule, const LossScaleState* state, LossScaleStep* step, Stream&) {
  updates::begin(rule, *state, *step);
}
void update_loss_scale(const LossScaleRule& rule, LossScaleStep* step, LossScaleState* state, Stream&) {
  updates::follow(rule, *step, *state);
}

}  // namespace

void use_updates(KernelTable& table) {
#define LOCKSTEP_UPDATE(name, Params) table.name = update<Params>;
#include "lockstep/core/operators.def"
  table.gradient_norm = gradient_norm;
  table.square_sums = square_sums;
  table.norm_of_sums = norm_of_sums;
  table.find_bad_gradients = find_bad_gradients;
  table.begin_loss_scale = begin_loss_scale;
  table.update_loss_scale = update_loss_scale;
}

}  // namespace lockstep::reference
