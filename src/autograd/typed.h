// The operators of a kernel table whatever the element type of the activations: float32's entries, or those on 16 bits.
#pragma once

#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"

namespace lockstep::typed {

inline bool is_float(const Tensor& tensor) { return tensor.dtype() == DType::kFloat32; }
inline void* memory(const Tensor& tensor) { return tensor.buffer().data(); }
inline void* memory_or_null(const Tensor& tensor) { return tensor.defined() ? memory(tensor) : nullptr; }
inline float* floats(void* memory) { return static_cast<float*>(memory); }

// An activation's memory: float32's entries want it as floats, those on 16 bits as void.
class Pointer {
 public:
  Pointer(void* memory) : memory_(memory) {}
  Pointer(const Tensor& tensor) : memory_(memory_or_null(tensor)) {}
  operator float*() const { return floats(memory_); }
  operator const float*() const { return floats(memory_); }
  operator void*() const { return memory_; }
  operator const void*() const { return memory_; }

 private:
  void* memory_;
};

// Runs an entry in the type of `of`, on its device's default stream: run(x, &KernelTable::relu, &MixedKernelTable::relu, Pointer(x), ...).
template <typename Plain, typename Half, typename... Arguments>
void run(const Tensor& of, Plain plain, Half half, Arguments&&... arguments) {
  const KernelTable& kernels = kernels_of(of);
  if (is_float(of))
    (kernels.*plain)(arguments..., stream_of(of));
  else
    (kernels.mixed.*half)(of.dtype(), arguments..., stream_of(of));
}

#define LOCKSTEP_TYPED(of, entry, ...) ::lockstep::typed::run(of, &KernelTable::entry, &MixedKernelTable::entry, __VA_ARGS__)

// The operand of conv2d and linear, see AutoCast. The cast is recorded, so that the gradient finds its way back.
inline Tensor autocast(const Tensor& x) { return is_float(x) && AutoCast::active() != DType::kFloat32 ? cast(x, AutoCast::active()) : x; }

// A parameter as an operator on `x` reads it: rounded to x's type. Not recorded: the operator's node has the parameter itself as its input.
inline Tensor copy_for(const Tensor& x, const Tensor& parameter) {
  if (!parameter.defined() || parameter.dtype() == x.dtype()) return parameter;
  const Tensor copy = Tensor::empty(parameter.shape(), x.dtype(), x.device());
  kernels_of(x).mixed.convert(parameter.dtype(), memory(parameter), x.dtype(), memory(copy), parameter.count(), false, stream_of(x));
  return copy;
}

}  // namespace lockstep::typed
