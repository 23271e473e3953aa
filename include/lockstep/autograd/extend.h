// What an operator is made of, here and outside of the tree: check the tensors, compute by the device's kernels, attach
// a node.
//
//   class ScaleNode : public Node {
//    public:
//     ScaleNode(std::vector<Tensor> inputs, float factor) : Node(std::move(inputs)), factor_(factor) {}
//     const char* name() const override { return "scale"; }
//     void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
//       kernels_of(result_grad).scale(result_grad, factor_, targets[0], stream_of(result_grad));
//     }
//    ...
//   Tensor scale(const Tensor& x, float factor) {
//     check_activation("scale", "x", x);
//     const Tensor y = empty_like(x);
//     kernels_of(x).scale(x, factor, y, stream_of(x));
//     record<ScaleNode>(y, {x}, factor);
//     return y;
//   }
//
// An operator with kernels of its own calls them instead of kernels_of(): on the CPU they compute before they return,
// on a GPU they queue their work on stream_of(x), whose native() is the cudaStream_t. docs/extending.md has an operator
// for both, by kernels_of() as above.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

inline constexpr int kAnyDims = -1;

// Each throws InvalidArgument that names the operator, the argument `what` ("x (N, H, W, C)") with the parameter's name
// where it is one (name_argument(), for an operator's own messages too), what came and what was expected. Defined, with
// `dims` dimensions, on `device` (null: any).
void check_place(std::string_view operation, std::string_view what, const Tensor& x, int dims = kAnyDims,
                 const Device* device = nullptr);
// The same, and of this type: parameters, losses and statistics are float32, labels and indices int64.
void check_input(std::string_view operation, std::string_view what, const Tensor& x, int dims = kAnyDims,
                 const Device* device = nullptr, DType type = DType::kFloat32);
// The same for an activation: float32, float16 or bfloat16.
void check_activation(std::string_view operation, std::string_view what, const Tensor& x, int dims = kAnyDims,
                      const Device* device = nullptr);
// The same, of the type of `like` and on its device.
void check_alike(std::string_view operation, std::string_view what, const Tensor& x, const Tensor& like,
                 int dims = kAnyDims);

// Attaches NodeType(inputs, args...) to `result` when one of the inputs wants a gradient. A node that saves its own
// result saves detach(result): else it would own itself.
template <typename NodeType, typename... Args>
void record(const Tensor& result, std::vector<Tensor> inputs, Args&&... args) {
  if (recording(inputs)) attach(result, std::make_shared<NodeType>(std::move(inputs), std::forward<Args>(args)...));
}

// Uninitialised memory on x's device, of x's type unless `type` says another.
inline Tensor empty_like(const Tensor& x) { return Tensor::empty(x.shape(), x.dtype(), x.device()); }
inline Tensor empty_like(const Tensor& x, const Shape& shape) { return Tensor::empty(shape, x.dtype(), x.device()); }
inline Tensor empty_like(const Tensor& x, const Shape& shape, DType type) {
  return Tensor::empty(shape, type, x.device());
}

inline const KernelTable& kernels_of(const Tensor& tensor) { return tensor.device().kernels(); }
inline Stream& stream_of(const Tensor& tensor) { return tensor.device().default_stream(); }

// Mixed precision, see AutoCast. An operator that computes in 16 bits under one takes its activation by autocast(),
// which records a cast, and reads its parameters by read_as(): rounded to x's type and not recorded, since the node has
// the parameter itself as its input.
Tensor autocast(const Tensor& x);
// The same of the operands of one product: 16-bit ones of unlike types are taken in AutoCast's.
void autocast_together(std::initializer_list<Tensor*> operands);
// Under an AutoCast, x in float32, for an operator whose result 16 bits would spoil: exp, sum, softmax, norms.
// Otherwise x itself.
Tensor autocast_to_float32(const Tensor& x);
// Under an AutoCast, tensors of unlike float types in the widest, which is float32, for operators that take all of a
// call alike. Nullopt: they are to be taken as they are.
std::optional<std::vector<Tensor>> autocast_to_widest(const std::vector<Tensor>& operands);
std::optional<std::pair<Tensor, Tensor>> autocast_to_widest(const Tensor& a, const Tensor& b);
Tensor read_as(const Tensor& x, const Tensor& parameter);

}  // namespace lockstep
#pragma GCC visibility pop
