// Steps of recurrent layers: a thread computes one element of the state.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fast_division.cuh"
#include "kernels/recurrent_formulas.h"

namespace lockstep::cuda {

namespace {

struct GateMath {
  using Number = float;
  LOCKSTEP_HOST_DEVICE static float logistic(float x) { return 1.0F / (1.0F + expf(-x)); }
  LOCKSTEP_HOST_DEVICE static float tanh(float x) { return tanhf(x); }
};
using StepFormulas = RecurrentFormulas<GateMath>;

// The sizes of a step, and which samples have ended.
template <typename Number> struct Steps {
  Steps(Index step, In lengths, Index count, Index width)
      : step(step), lengths(lengths.as<Index>()), count(count), width(width) {}
  __device__ bool has_ended(Index row) const { return lengths != nullptr && step >= lengths[row]; }

  Index step;
  const Index* lengths;
  Index count;
  Divisor<Number> width;
};

template <typename T, typename Number> __global__ void lstm_step_of(Steps<Number> steps, const T* from_state,
                                                                    const T* h_before, const float* c_before, T* gates,
                                                                    T* h, float* c) {
  for (Index i = first_item(); i < steps.count; i += stride_of_grid()) {
    const Divided<Number> at = steps.width.divide(static_cast<Number>(i));
    const Index width = steps.width.value(), first = static_cast<Index>(at.quotient) * 4 * width + at.remainder;
    float sums[4];
#pragma unroll
    for (int gate = 0; gate < 4; ++gate)
      sums[gate] = widen(gates[first + gate * width]) + widen(from_state[first + gate * width]);
    const StepFormulas::LstmStep s = StepFormulas::lstm(sums[0], sums[1], sums[2], sums[3], c_before[i]);
    write(gates[first], s.i);
    write(gates[first + width], s.f);
    write(gates[first + 2 * width], s.g);
    write(gates[first + 3 * width], s.o);
    const bool ended = steps.has_ended(at.quotient);
    write(h[i], ended ? widen(h_before[i]) : s.h);
    c[i] = ended ? c_before[i] : s.c;
  }
}

template <typename T, typename Number>
__global__ void lstm_step_backward_of(Steps<Number> steps, const T* gates, const float* c_before, const float* c,
                                      const T* h_grad, T* gates_grad, T* h_before_grad, float* c_grad) {
  for (Index i = first_item(); i < steps.count; i += stride_of_grid()) {
    const Divided<Number> at = steps.width.divide(static_cast<Number>(i));
    const Index width = steps.width.value(), first = static_cast<Index>(at.quotient) * 4 * width + at.remainder;
    StepFormulas::LstmGrads grads{0, 0, 0, 0, c_grad[i]};
    if (steps.has_ended(at.quotient))
      write(h_before_grad[i], widen(h_before_grad[i]) + widen(h_grad[i]));
    else
      grads =
          StepFormulas::lstm_grads(widen(gates[first]), widen(gates[first + width]), widen(gates[first + 2 * width]),
                                   widen(gates[first + 3 * width]), c_before[i], c[i], widen(h_grad[i]), c_grad[i]);
    write(gates_grad[first], grads.i);
    write(gates_grad[first + width], grads.f);
    write(gates_grad[first + 2 * width], grads.g);
    write(gates_grad[first + 3 * width], grads.o);
    c_grad[i] = grads.c_before;
  }
}

template <typename T, typename Number> __global__ void gru_step_of(Steps<Number> steps, const T* from_input,
                                                                   const T* from_state, const T* h_before, T* gates,
                                                                   T* h) {
  for (Index i = first_item(); i < steps.count; i += stride_of_grid()) {
    const Divided<Number> at = steps.width.divide(static_cast<Number>(i));
    const Index width = steps.width.value(), in = static_cast<Index>(at.quotient) * 3 * width + at.remainder,
                out = static_cast<Index>(at.quotient) * 4 * width + at.remainder;
    const float of_state = widen(from_state[in + 2 * width]);
    const StepFormulas::GruStep s = StepFormulas::gru(widen(from_input[in]) + widen(from_state[in]),
                                                      widen(from_input[in + width]) + widen(from_state[in + width]),
                                                      widen(from_input[in + 2 * width]), of_state, widen(h_before[i]));
    write(gates[out], s.r);
    write(gates[out + width], s.z);
    write(gates[out + 2 * width], s.n);
    write(gates[out + 3 * width], of_state);
    write(h[i], steps.has_ended(at.quotient) ? widen(h_before[i]) : s.h);
  }
}

template <typename T, typename Number>
__global__ void gru_step_backward_of(Steps<Number> steps, const T* gates, const T* h_before, const T* h_grad,
                                     T* input_grad, T* state_grad, T* h_before_grad) {
  for (Index i = first_item(); i < steps.count; i += stride_of_grid()) {
    const Divided<Number> at = steps.width.divide(static_cast<Number>(i));
    const Index width = steps.width.value(), in = static_cast<Index>(at.quotient) * 4 * width + at.remainder,
                out = static_cast<Index>(at.quotient) * 3 * width + at.remainder;
    StepFormulas::GruGrads grads{0, 0, 0, 0, widen(h_grad[i])};
    if (!steps.has_ended(at.quotient))
      grads = StepFormulas::gru_grads(widen(gates[in]), widen(gates[in + width]), widen(gates[in + 2 * width]),
                                      widen(gates[in + 3 * width]), widen(h_before[i]), widen(h_grad[i]));
    write(input_grad[out], grads.r);
    write(state_grad[out], grads.r);
    write(input_grad[out + width], grads.z);
    write(state_grad[out + width], grads.z);
    write(input_grad[out + 2 * width], grads.n);
    write(state_grad[out + 2 * width], grads.state_n);
    write(h_before_grad[i], widen(h_before_grad[i]) + grads.h_before);
  }
}

// Calls `call` with null pointers to the element's type and to the index's, for `count` elements of the state.
template <typename Call> void with_step_types(DType type, Index count, Call&& call) {
  if (count == 0) return;
  with_float(type, [&]<typename T>(T* null) {
    with_index_of(4 * count, [&]<typename Number>(Number number) { call(null, number); });
  });
}

void lstm_step(Index step, In from_state, In h_before, In c_before, In lengths, Out gates, Out h, Out c,
               Stream& stream) {
  const Index count = c.count();
  with_step_types(h.dtype, count, [&]<typename T, typename Number>(T*, Number) {
    LOCKSTEP_LAUNCH((lstm_step_of<T, Number>), blocks_for(count), kThreads, 0, stream,
                    Steps<Number>(step, lengths, count, c.shape[1]), from_state.as<T>(), h_before.as<T>(),
                    c_before.floats(), gates.as<T>(), h.as<T>(), c.floats());
  });
}

void lstm_step_backward(Index step, In gates, In c_before, In c, In h_grad, In lengths, Out gates_grad,
                        Out h_before_grad, Out c_grad, Stream& stream) {
  const Index count = c.count();
  with_step_types(h_grad.dtype, count, [&]<typename T, typename Number>(T*, Number) {
    LOCKSTEP_LAUNCH((lstm_step_backward_of<T, Number>), blocks_for(count), kThreads, 0, stream,
                    Steps<Number>(step, lengths, count, c.shape[1]), gates.as<T>(), c_before.floats(), c.floats(),
                    h_grad.as<T>(), gates_grad.as<T>(), h_before_grad.as<T>(), c_grad.floats());
  });
}

void gru_step(Index step, In from_input, In from_state, In h_before, In lengths, Out gates, Out h, Stream& stream) {
  const Index count = h.count();
  with_step_types(h.dtype, count, [&]<typename T, typename Number>(T*, Number) {
    LOCKSTEP_LAUNCH((gru_step_of<T, Number>), blocks_for(count), kThreads, 0, stream,
                    Steps<Number>(step, lengths, count, h.shape[1]), from_input.as<T>(), from_state.as<T>(),
                    h_before.as<T>(), gates.as<T>(), h.as<T>());
  });
}

void gru_step_backward(Index step, In gates, In h_before, In h_grad, In lengths, Out input_grad, Out state_grad,
                       Out h_before_grad, Stream& stream) {
  const Index count = h_grad.count();
  with_step_types(h_grad.dtype, count, [&]<typename T, typename Number>(T*, Number) {
    LOCKSTEP_LAUNCH((gru_step_backward_of<T, Number>), blocks_for(count), kThreads, 0, stream,
                    Steps<Number>(step, lengths, count, h_grad.shape[1]), gates.as<T>(), h_before.as<T>(),
                    h_grad.as<T>(), input_grad.as<T>(), state_grad.as<T>(), h_before_grad.as<T>());
  });
}

}  // namespace

void use_recurrent(KernelTable& table) {
  table.lstm_step = lstm_step;
  table.lstm_step_backward = lstm_step_backward;
  table.gru_step = gru_step;
  table.gru_step_backward = gru_step_backward;
}

}  // namespace lockstep::cuda
