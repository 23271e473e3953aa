// Elementwise operators: bound by memory, so four floats a load where the pointers allow it.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "src/cuda/cuda_device.h"

namespace lockstep::cuda {

namespace {

// What an operator does to one element, and which of its operands it reads: `out` is the value before.
template <bool a, bool b, bool out>
struct Reads {
  static constexpr bool kA = a, kB = b, kOut = out;
};
struct Fill : Reads<false, false, false> {
  float value;
  explicit Fill(float value) : value(value) {}
  __device__ float operator()(float, float, float) const { return value; }
};
struct Add : Reads<true, true, false> {
  __device__ float operator()(float a, float b, float) const { return a + b; }
};
struct Accumulate : Reads<true, false, true> {
  __device__ float operator()(float addend, float, float sum) const { return sum + addend; }
};
struct Scale : Reads<true, false, false> {
  float factor;
  explicit Scale(float factor) : factor(factor) {}
  __device__ float operator()(float in, float, float) const { return in * factor; }
};
struct ScaleAndAdd : Reads<true, false, true> {
  float factor;
  explicit ScaleAndAdd(float factor) : factor(factor) {}
  __device__ float operator()(float in, float, float out) const { return out + in * factor; }
};
struct ScaleBy : Reads<true, false, false> {
  const float* factor;
  explicit ScaleBy(const float* factor) : factor(factor) {}
  __device__ float operator()(float in, float, float) const { return in * *factor; }
};
struct ScaleByAndAdd : Reads<true, false, true> {
  const float* factor;
  explicit ScaleByAndAdd(const float* factor) : factor(factor) {}
  __device__ float operator()(float in, float, float out) const { return out + in * *factor; }
};
struct Relu : Reads<true, false, false> {  // NaN goes through
  __device__ float operator()(float in, float, float) const { return in < 0 ? 0.0F : in; }
};
struct ReluBackward : Reads<true, false, true> {
  __device__ float operator()(float y, float, float grad) const { return y > 0 ? grad : 0.0F; }
};

template <typename Operator>
__global__ void elementwise_four(const float4* a, const float4* b, float4* out, Index fours, Operator apply) {
  for (Index i = first_item(); i < fours; i += stride_of_grid()) {
    float4 x{}, y{}, z{};
    if constexpr (Operator::kA) x = a[i];
    if constexpr (Operator::kB) y = b[i];
    if constexpr (Operator::kOut) z = out[i];
    out[i] = {apply(x.x, y.x, z.x), apply(x.y, y.y, z.y), apply(x.z, y.z, z.z), apply(x.w, y.w, z.w)};
  }
}

template <typename Operator>
__global__ void elementwise_one(const float* a, const float* b, float* out, Index begin, Index count, Operator apply) {
  for (Index i = begin + first_item(); i < count; i += stride_of_grid())
    out[i] = apply(Operator::kA ? a[i] : 0.0F, Operator::kB ? b[i] : 0.0F, Operator::kOut ? out[i] : 0.0F);
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(float4) == 0; }

// Both `a` and `out` may be the same; each element is read before it is written, by the same thread.
template <typename Operator>
void run(const float* a, const float* b, float* out, Index count, Operator apply, Stream& stream) {
  if (count == 0) return;
  const Index fours = is_aligned(a) && is_aligned(b) && is_aligned(out) ? count / 4 : 0;
  if (fours > 0)
    LOCKSTEP_LAUNCH((elementwise_four<Operator>), blocks_for(fours), kThreads, 0, stream, reinterpret_cast<const float4*>(a),
                    reinterpret_cast<const float4*>(b), reinterpret_cast<float4*>(out), fours, apply);
  if (fours * 4 < count)
    LOCKSTEP_LAUNCH((elementwise_one<Operator>), blocks_for(count - fours * 4), kThreads, 0, stream, a, b, out, fours * 4, count, apply);
}

}  // namespace

bool has_code_for_this_device() {
  cudaFuncAttributes attributes{};
  const cudaError_t result = cudaFuncGetAttributes(&attributes, elementwise_one<Fill>);
  cudaGetLastError();
  return result == cudaSuccess;
}

void fill(float* out, float value, Index count, Stream& stream) { run(nullptr, nullptr, out, count, Fill(value), stream); }

void add(const float* a, const float* b, float* out, Index count, Stream& stream) { run(a, b, out, count, Add{}, stream); }

void accumulate(float* sum, const float* addend, Index count, Stream& stream) { run(addend, nullptr, sum, count, Accumulate{}, stream); }

void scale(const float* in, float factor, float* out, Index count, bool accumulate, Stream& stream) {
  if (accumulate)
    run(in, nullptr, out, count, ScaleAndAdd(factor), stream);
  else
    run(in, nullptr, out, count, Scale(factor), stream);
}

void scale_by(const float* in, const float* factor, float* out, Index count, bool accumulate, Stream& stream) {
  if (accumulate)
    run(in, nullptr, out, count, ScaleByAndAdd(factor), stream);
  else
    run(in, nullptr, out, count, ScaleBy(factor), stream);
}

void relu(const float* in, float* out, Index count, Stream& stream) { run(in, nullptr, out, count, Relu{}, stream); }

void relu_backward(const float* y, float* grad, Index count, Stream& stream) { run(y, nullptr, grad, count, ReluBackward{}, stream); }

}  // namespace lockstep::cuda
