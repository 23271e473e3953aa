// The fused step of stochastic gradient descent: all parameters in one launch (96 tensors a launch, by value in its arguments: nothing is
// copied to the device first). Products and sums are rounded one by one, as on the CPU: the same bits.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kTensorsOfLaunch = 96;
constexpr Index kElementsOfBlock = 4 * kThreads * 4;

struct Batch {
  SgdTensor tensors[kTensorsOfLaunch];
  unsigned first_block[kTensorsOfLaunch + 1];
  int count;
};
static_assert(sizeof(Batch) + sizeof(SgdParams) <= 4096, "kernel arguments");

// What the device knows of a step, read once a thread.
struct Scalars {
  float lr, unscale;
};

__device__ float step(float& weight, float grad, float* momentum, const SgdParams& params, const Scalars& scalars) {
  grad = __fadd_rn(__fmul_rn(grad, scalars.unscale), __fmul_rn(params.weight_decay, weight));
  float change = grad;
  float velocity = 0;
  if (momentum != nullptr) {
    velocity = __fadd_rn(__fmul_rn(params.momentum, *momentum), grad);
    change = params.nesterov ? __fadd_rn(grad, __fmul_rn(params.momentum, velocity)) : velocity;
  }
  weight = __fsub_rn(weight, __fmul_rn(scalars.lr, change));
  return velocity;
}

__device__ void step_one(const SgdTensor& tensor, Index i, const SgdParams& params, const Scalars& scalars) {
  float weight = tensor.weight[i];
  const float velocity = step(weight, tensor.grad[i], tensor.momentum != nullptr ? tensor.momentum + i : nullptr, params, scalars);
  tensor.weight[i] = weight;
  if (tensor.momentum != nullptr) tensor.momentum[i] = velocity;
}

__device__ void step_four(const SgdTensor& tensor, Index four, const SgdParams& params, const Scalars& scalars) {
  float4 weight = reinterpret_cast<const float4*>(tensor.weight)[four];
  const float4 grad = reinterpret_cast<const float4*>(tensor.grad)[four];
  float4 momentum{};
  const bool has_momentum = tensor.momentum != nullptr;
  if (has_momentum) momentum = reinterpret_cast<const float4*>(tensor.momentum)[four];
  momentum.x = step(weight.x, grad.x, has_momentum ? &momentum.x : nullptr, params, scalars);
  momentum.y = step(weight.y, grad.y, has_momentum ? &momentum.y : nullptr, params, scalars);
  momentum.z = step(weight.z, grad.z, has_momentum ? &momentum.z : nullptr, params, scalars);
  momentum.w = step(weight.w, grad.w, has_momentum ? &momentum.w : nullptr, params, scalars);
  reinterpret_cast<float4*>(tensor.weight)[four] = weight;
  if (has_momentum) reinterpret_cast<float4*>(tensor.momentum)[four] = momentum;
}

__device__ bool is_aligned(const SgdTensor& tensor) {
  const auto bits = reinterpret_cast<std::uintptr_t>(tensor.weight) | reinterpret_cast<std::uintptr_t>(tensor.grad) |
                    reinterpret_cast<std::uintptr_t>(tensor.momentum);
  return bits % sizeof(float4) == 0;
}

// The share of a block: a piece of one tensor.
struct Piece {
  SgdTensor tensor;
  Index begin, end;
};
__device__ Piece piece_of_block(const Batch& batch) {
  int low = 0, high = batch.count;  // the tensor of this block: the last whose first block is not above
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (blockIdx.x >= batch.first_block[middle] ? low : high) = middle;
  }
  const Index begin = static_cast<Index>(blockIdx.x - batch.first_block[low]) * kElementsOfBlock;
  return {batch.tensors[low], begin, min(begin + kElementsOfBlock, batch.tensors[low].count)};
}

__global__ void sgd_batch(const __grid_constant__ Batch batch, SgdParams params) {
  Scalars scalars{*params.lr, 1};
  if (params.loss_scale != nullptr) {
    if (params.loss_scale->found_bad != 0) return;
    scalars.unscale = 1 / params.loss_scale->scale;
  }
  const Piece piece = piece_of_block(batch);
  Index i = piece.begin;
  if (is_aligned(piece.tensor)) {
    const Index fours_end = piece.end / 4;
    for (Index four = piece.begin / 4 + threadIdx.x; four < fours_end; four += blockDim.x) step_four(piece.tensor, four, params, scalars);
    i = fours_end * 4;
  }
  for (i += threadIdx.x; i < piece.end; i += blockDim.x) step_one(piece.tensor, i, params, scalars);
}

__global__ void find_bad(const __grid_constant__ Batch batch, LossScaleState* state) {
  const Piece piece = piece_of_block(batch);
  bool bad = false;
  for (Index i = piece.begin + threadIdx.x; i < piece.end; i += blockDim.x) bad |= !isfinite(piece.tensor.grad[i]);
  if (__syncthreads_or(bad ? 1 : 0) != 0 && threadIdx.x == 0) atomicExch(&state->found_bad, 1.0F);
}

__global__ void update_scale(LossScaleRule rule, LossScaleState* state) {
  if (state->found_bad != 0) {
    state->scale *= rule.backoff;
    state->good_steps = 0;
    state->skipped_steps += 1;
    state->found_bad = 0;
    return;
  }
  state->good_steps += 1;
  if (state->good_steps < static_cast<float>(rule.growth_interval)) return;
  if (isfinite(state->scale * rule.growth)) state->scale *= rule.growth;
  state->good_steps = 0;
}

// Calls `launch` with as many tensors at a time as a kernel's arguments hold.
template <typename Launch>
void in_batches(std::span<const SgdTensor> tensors, Launch&& launch) {
  Batch batch{};
  for (const SgdTensor& tensor : tensors) {
    if (tensor.count == 0) continue;
    if (batch.count == kTensorsOfLaunch) {
      launch(batch);
      batch = {};
    }
    batch.tensors[batch.count] = tensor;
    const auto blocks = static_cast<unsigned>((tensor.count + kElementsOfBlock - 1) / kElementsOfBlock);
    batch.first_block[batch.count + 1] = batch.first_block[batch.count] + blocks;
    ++batch.count;
  }
  if (batch.count > 0) launch(batch);
}

}  // namespace

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams& params, Stream& stream) {
  in_batches(tensors,
             [&](const Batch& batch) { LOCKSTEP_LAUNCH(sgd_batch, batch.first_block[batch.count], kThreads, 0, stream, batch, params); });
}

void find_bad_gradients(std::span<const SgdTensor> tensors, LossScaleState* state, Stream& stream) {
  in_batches(tensors,
             [&](const Batch& batch) { LOCKSTEP_LAUNCH(find_bad, batch.first_block[batch.count], kThreads, 0, stream, batch, state); });
}

void update_loss_scale(const LossScaleRule& rule, LossScaleState* state, Stream& stream) {
  LOCKSTEP_LAUNCH(update_scale, 1, 1, 0, stream, rule, state);
}

}  // namespace lockstep::cuda
