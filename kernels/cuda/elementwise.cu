// Elementwise operators. They are limited by memory, so each load has 16 bytes where the pointers allow it.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"

namespace lockstep::cuda {

namespace {

// An operator on one element, and which of its operands it reads; `out` is the old value.
template <bool a, bool b, bool out> struct Reads { static constexpr bool kA = a, kB = b, kOut = out; };
struct Fill : Reads<false, false, false> {
  float value;
  explicit Fill(float value) : value(value) {}
  __device__ float operator()(float, float, float) const { return value; }
};
struct Add : Reads<true, true, false> {
  __device__ float operator()(float a, float b, float) const { return a + b; }
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
struct ReLU : Reads<true, false, false> {  // NaN stays NaN
  __device__ float operator()(float in, float, float) const { return in < 0 ? 0.0F : in; }
};
struct ReLUBackward : Reads<true, false, true> {
  __device__ float operator()(float y, float, float grad) const { return y > 0 ? grad : 0.0F; }
};

template <typename T> constexpr int kElementwisePack = 16 / sizeof(T);

template <typename T, typename Operator>
__global__ void elementwise_packs(const T* a, const T* b, T* out, Index packs, Operator apply) {
  using Values = Pack<T, kElementwisePack<T>>;
  for (Index i = first_item(); i < packs; i += stride_of_grid()) {
    Values x, y, z;
    if constexpr (Operator::kA) x = reinterpret_cast<const Values*>(a)[i];
    if constexpr (Operator::kB) y = reinterpret_cast<const Values*>(b)[i];
    if constexpr (Operator::kOut) z = reinterpret_cast<const Values*>(out)[i];
    Values result;
#pragma unroll
    for (int j = 0; j < kElementwisePack<T>; ++j)
      write(result.values[j], apply(Operator::kA ? widen(x.values[j]) : 0.0F, Operator::kB ? widen(y.values[j]) : 0.0F,
                                    Operator::kOut ? widen(z.values[j]) : 0.0F));
    reinterpret_cast<Values*>(out)[i] = result;
  }
}

template <typename T, typename Operator>
__global__ void elementwise_one(const T* a, const T* b, T* out, Index begin, Index count, Operator apply) {
  for (Index i = begin + first_item(); i < count; i += stride_of_grid())
    write(out[i], apply(Operator::kA ? widen(a[i]) : 0.0F, Operator::kB ? widen(b[i]) : 0.0F,
                        Operator::kOut ? widen(out[i]) : 0.0F));
}

// `out` may be `a` or `b`: the same thread reads each element before it writes it.
template <typename T, typename Operator>
void run(const T* a, const T* b, T* out, Index count, Operator apply, Stream& stream) {
  if (count == 0) return;
  constexpr int kOf = kElementwisePack<T>;
  const bool aligned =
      is_aligned_to_pack<T, kOf>(a) && is_aligned_to_pack<T, kOf>(b) && is_aligned_to_pack<T, kOf>(out);
  const Index packs = aligned ? count / kOf : 0, done = packs * kOf;
  if (packs > 0)
    LOCKSTEP_LAUNCH((elementwise_packs<T, Operator>), blocks_for(packs), kThreads, 0, stream, a, b, out, packs, apply);
  if (done < count)
    LOCKSTEP_LAUNCH((elementwise_one<T, Operator>), blocks_for(count - done), kThreads, 0, stream, a, b, out, done,
                    count, apply);
}
template <typename T, typename Operator> void run(const T* in, T* out, Index count, Operator apply, Stream& stream) {
  run(in, static_cast<const T*>(nullptr), out, count, apply, stream);
}

template <typename From, typename To>
__global__ void convert_packs(const From* in, To* out, Index packs, bool accumulate) {
  for (Index i = first_item(); i < packs; i += stride_of_grid()) {
    const Pack<From, 4> from = reinterpret_cast<const Pack<From, 4>*>(in)[i];
    Pack<To, 4> to;
    if (accumulate) to = reinterpret_cast<const Pack<To, 4>*>(out)[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) store(to.values[j], widen(from.values[j]), accumulate);
    reinterpret_cast<Pack<To, 4>*>(out)[i] = to;
  }
}

template <typename From, typename To>
__global__ void convert_one(const From* in, To* out, Index begin, Index count, bool accumulate) {
  for (Index i = begin + first_item(); i < count; i += stride_of_grid()) store(out[i], widen(in[i]), accumulate);
}

template <typename From, typename To>
void run_convert(const From* in, To* out, Index count, bool accumulate, Stream& stream) {
  if (count == 0) return;
  const Index packs = is_aligned_to_pack<From, 4>(in) && is_aligned_to_pack<To, 4>(out) ? count / 4 : 0,
              done = packs * 4;
  if (packs > 0)
    LOCKSTEP_LAUNCH((convert_packs<From, To>), blocks_for(packs), kThreads, 0, stream, in, out, packs, accumulate);
  if (done < count)
    LOCKSTEP_LAUNCH((convert_one<From, To>), blocks_for(count - done), kThreads, 0, stream, in, out, done, count,
                    accumulate);
}

void add(In a, In b, Out out, Stream& stream) {
  with_float(out.dtype, [&]<typename T>(T*) { run(a.as<T>(), b.as<T>(), out.as<T>(), out.count(), Add{}, stream); });
}

void scale(In in, float factor, Out out, Stream& stream) {
  with_float(out.dtype, [&]<typename T>(T*) {
    if (out.accumulate)
      run(in.as<T>(), out.as<T>(), out.count(), ScaleAndAdd(factor), stream);
    else
      run(in.as<T>(), out.as<T>(), out.count(), Scale(factor), stream);
  });
}

void scale_by(In in, In factor, Out out, Stream& stream) {
  if (out.accumulate)
    run(in.floats(), out.floats(), out.count(), ScaleByAndAdd(factor.floats()), stream);
  else
    run(in.floats(), out.floats(), out.count(), ScaleBy(factor.floats()), stream);
}

void relu_backward(In y, Out grad, Stream& stream) {
  with_float(grad.dtype, [&]<typename T>(T*) { run(y.as<T>(), grad.as<T>(), grad.count(), ReLUBackward{}, stream); });
}

}  // namespace

bool has_code_for_this_device() {
  cudaFuncAttributes attributes{};
  const cudaError_t result = cudaFuncGetAttributes(&attributes, elementwise_one<float, Fill>);
  cudaGetLastError();
  return result == cudaSuccess;
}

void fill(Out out, float value, Stream& stream) {
  run(static_cast<const float*>(nullptr), out.floats(), out.count(), Fill(value), stream);
}

void convert(In in, Out out, Stream& stream) {
  with_float(in.dtype, [&]<typename From>(From*) {
    with_float(out.dtype,
               [&]<typename To>(To*) { run_convert(in.as<From>(), out.as<To>(), in.count(), out.accumulate, stream); });
  });
}

void relu(In x, Out y, Stream& stream) {
  with_float(y.dtype, [&]<typename T>(T*) { run(x.as<T>(), y.as<T>(), y.count(), ReLU{}, stream); });
}

void use_elementwise(KernelTable& table) {
  table.fill = fill;
  table.convert = convert;
  table.add = add;
  table.scale = scale;
  table.scale_by = scale_by;
  table.relu = relu;
  table.relu_backward = relu_backward;
}

}  // namespace lockstep::cuda
