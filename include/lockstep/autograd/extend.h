// How to write an operator, inside or outside of this repository: check the tensors, compute with the device's kernels,
// attach a node.
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
// An operator that has its own kernels calls them instead of kernels_of(). On the CPU they compute before they return;
// on a GPU they queue their work on stream_of(x), whose native() is the cudaStream_t. docs/tutorial.md has such an
// operator for both.
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

// The checks throw InvalidArgument that names the operator, the argument `what` (for example "x (N, H, W, C)"; if the
// tensor is a parameter, with its name, see name_argument()), the expected and the actual value. check_place: x is
// defined, has `dims` dimensions and is on `device` (null: on any).
void check_place(std::string_view operation, std::string_view what, const Tensor& x, int dims = kAnyDims,
                 const Device* device = nullptr);
// check_place, and x has this type. Parameters, losses and statistics are float32; labels and indices are int64.
void check_input(std::string_view operation, std::string_view what, const Tensor& x, int dims = kAnyDims,
                 const Device* device = nullptr, DType type = DType::kFloat32);
// check_place, and x is an activation: float32, float16 or bfloat16.
void check_activation(std::string_view operation, std::string_view what, const Tensor& x, int dims = kAnyDims,
                      const Device* device = nullptr);
// check_place, and x has the type and the device of `like`.
void check_alike(std::string_view operation, std::string_view what, const Tensor& x, const Tensor& like,
                 int dims = kAnyDims);

// Attaches NodeType(inputs, args...) to `result` if one of the inputs requires a gradient. A node that saves its own
// result must save detach(result); otherwise it would own itself.
template <typename NodeType, typename... Args>
void record(const Tensor& result, std::vector<Tensor> inputs, Args&&... args) {
  if (recording(inputs)) attach(result, std::make_shared<NodeType>(std::move(inputs), std::forward<Args>(args)...));
}

// Uninitialised memory on x's device, of x's type unless `type` is given.
inline Tensor empty_like(const Tensor& x) { return Tensor::empty(x.shape(), x.dtype(), x.device()); }
inline Tensor empty_like(const Tensor& x, const Shape& shape) { return Tensor::empty(shape, x.dtype(), x.device()); }
inline Tensor empty_like(const Tensor& x, const Shape& shape, DType type) {
  return Tensor::empty(shape, type, x.device());
}

inline const KernelTable& kernels_of(const Tensor& tensor) { return tensor.device().kernels(); }
inline Stream& stream_of(const Tensor& tensor) { return tensor.device().default_stream(); }

// Mixed precision, see AutoCast. An operator that computes in 16 bits under an AutoCast converts its activation with
// autocast(), which records a cast, and reads its parameters with read_as(): converted to x's type, not recorded,
// because the node has the parameter itself as its input.
Tensor autocast(const Tensor& x);
// The same for the operands of one product: 16-bit operands of different types are converted to AutoCast's type.
void autocast_together(std::initializer_list<Tensor*> operands);
// Under an AutoCast, converts x to float32, for operators whose results would be too imprecise in 16 bits: exp, sum,
// softmax, norms. Otherwise returns x.
Tensor autocast_to_float32(const Tensor& x);
// For operators whose operands must have the same type: under an AutoCast, float tensors of different types converted
// to the widest, which is float32. nullopt: no conversion is needed.
std::optional<std::vector<Tensor>> autocast_to_widest(const std::vector<Tensor>& operands);
std::optional<std::pair<Tensor, Tensor>> autocast_to_widest(const Tensor& a, const Tensor& b);
Tensor read_as(const Tensor& x, const Tensor& parameter);

}  // namespace lockstep
#pragma GCC visibility pop
