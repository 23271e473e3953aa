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

__device__ float step(float& weight, float grad, float* momentum, const SgdParams& params) {
  grad = __fadd_rn(grad, __fmul_rn(params.weight_decay, weight));
  float change = grad;
  float velocity = 0;
  if (momentum != nullptr) {
    velocity = __fadd_rn(__fmul_rn(params.momentum, *momentum), grad);
    change = params.nesterov ? __fadd_rn(grad, __fmul_rn(params.momentum, velocity)) : velocity;
  }
  weight = __fsub_rn(weight, __fmul_rn(params.lr, change));
  return velocity;
}

__device__ void step_one(const SgdTensor& tensor, Index i, const SgdParams& params) {
  float weight = tensor.weight[i];
  const float velocity = step(weight, tensor.grad[i], tensor.momentum != nullptr ? tensor.momentum + i : nullptr, params);
  tensor.weight[i] = weight;
  if (tensor.momentum != nullptr) tensor.momentum[i] = velocity;
}

__device__ void step_four(const SgdTensor& tensor, Index four, const SgdParams& params) {
  float4 weight = reinterpret_cast<const float4*>(tensor.weight)[four];
  const float4 grad = reinterpret_cast<const float4*>(tensor.grad)[four];
  float4 momentum{};
  const bool has_momentum = tensor.momentum != nullptr;
  if (has_momentum) momentum = reinterpret_cast<const float4*>(tensor.momentum)[four];
  momentum.x = step(weight.x, grad.x, has_momentum ? &momentum.x : nullptr, params);
  momentum.y = step(weight.y, grad.y, has_momentum ? &momentum.y : nullptr, params);
  momentum.z = step(weight.z, grad.z, has_momentum ? &momentum.z : nullptr, params);
  momentum.w = step(weight.w, grad.w, has_momentum ? &momentum.w : nullptr, params);
  reinterpret_cast<float4*>(tensor.weight)[four] = weight;
  if (has_momentum) reinterpret_cast<float4*>(tensor.momentum)[four] = momentum;
}

__device__ bool is_aligned(const SgdTensor& tensor) {
  const auto bits = reinterpret_cast<std::uintptr_t>(tensor.weight) | reinterpret_cast<std::uintptr_t>(tensor.grad) |
                    reinterpret_cast<std::uintptr_t>(tensor.momentum);
  return bits % sizeof(float4) == 0;
}

__global__ void sgd_batch(const __grid_constant__ Batch batch, SgdParams params) {
  int low = 0, high = batch.count;  // the tensor of this block: the last whose first block is not above
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (blockIdx.x >= batch.first_block[middle] ? low : high) = middle;
  }
  const SgdTensor tensor = batch.tensors[low];
  const Index begin = (blockIdx.x - batch.first_block[low]) * kElementsOfBlock, end = min(begin + kElementsOfBlock, tensor.count);
  Index i = begin;
  if (is_aligned(tensor)) {
    const Index fours_end = end / 4;
    for (Index four = begin / 4 + threadIdx.x; four < fours_end; four += blockDim.x) step_four(tensor, four, params);
    i = fours_end * 4;
  }
  for (i += threadIdx.x; i < end; i += blockDim.x) step_one(tensor, i, params);
}

}  // namespace

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams& params, Stream& stream) {
  Batch batch{};
  const auto launch = [&] {
    if (batch.count > 0) LOCKSTEP_LAUNCH(sgd_batch, batch.first_block[batch.count], kThreads, 0, stream, batch, params);
    batch = {};
  };
  for (const SgdTensor& tensor : tensors) {
    if (tensor.count == 0) continue;
    if (batch.count == kTensorsOfLaunch) launch();
    batch.tensors[batch.count] = tensor;
    const auto blocks = static_cast<unsigned>((tensor.count + kElementsOfBlock - 1) / kElementsOfBlock);
    batch.first_block[batch.count + 1] = batch.first_block[batch.count] + blocks;
    ++batch.count;
  }
  launch();
}

}  // namespace lockstep::cuda
