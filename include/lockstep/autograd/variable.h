// Autograd's state of a tensor: whether it wants a gradient, where that gradient lives, and its hooks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Marks a leaf (a parameter) of float32, float16 or bfloat16: backward computes its gradient into grad(). Optimizers
// take float32.
void require_grad(const Tensor& leaf, bool wanted = true);
bool requires_grad(const Tensor& tensor);  // a leaf that is marked, or a result that depends on one

// The name of the leaf in messages. A module names its parameters by their paths from the outermost module to which it
// was added so far.
void set_name(const Tensor& leaf, const std::string& name);
std::string describe(
    const Tensor& tensor);  // "parameter 'block.first.weight' of shape (8, 4)", "a tensor of shape (8, 4)"
// An operator's argument `what`: "weight 'block.first.weight'"; "weight" of a tensor without a name, or an undefined
// one.
std::string name_argument(std::string_view what, const Tensor& tensor);

// The gradient of a leaf: same shape and type as the leaf. Undefined until the first backward or bind_grad().
// InvalidArgument while it is withheld.
Tensor grad(const Tensor& leaf);
// True once backward (or mark_grad_written) wrote the gradient since the last clear_grad().
bool has_grad(const Tensor& leaf);
// "No gradient": the next backward overwrites the memory instead of adding to it. Costs nothing, touches no memory.
void clear_grad(const Tensor& leaf);
// Declares that the gradient's memory holds a value although backward did not write it (the reducer's zeros), and that
// it is the one to step by (an average over the ranks that a program took by itself).
void mark_grad_written(const Tensor& leaf);
// Until clear_grad() nobody is given the gradient: grad() throws with `reason`, a string literal. For a wrapper whose
// memory does not hold what a reader expects, or after which a change would come too late; it has grad_buffer().
void withhold_grad(const Tensor& leaf, const char* reason);
bool is_grad_withheld(const Tensor& leaf);
// Until clear_grad() or mark_grad_written() an optimizer's step() refuses the gradient with `reason`, a string literal;
// null: no longer. For a wrapper that has not averaged it yet. Everybody may read and change it.
void refuse_step(const Tensor& leaf, const char* reason);
const char* step_refusal(const Tensor& leaf);  // null: none
// The gradient's memory, withheld or not; empty before the first backward or bind_grad().
Buffer grad_buffer(const Tensor& leaf);
// The gradient lives in this memory from now on (a slot in a bucket). The present value, if any, is copied there.
void bind_grad(const Tensor& leaf, Buffer slot);

// Called on the backward thread when this process has the leaf's whole gradient of the pass, in order of registration.
// May change grad() in place. DistributedDataParallel sends the gradient when all of a leaf's hooks have returned,
// whether they were registered before the module was wrapped or later: a hook sees and changes this rank's own
// gradient, never the average.
using GradHook = std::function<void(const Tensor& leaf)>;

// Removes its hook when it goes (or by remove()). Movable.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  HookHandle(HookHandle&& other) noexcept : remove_(std::exchange(other.remove_, nullptr)) {}
  HookHandle& operator=(HookHandle&& other) noexcept {
    if (this != &other) {
      remove();
      remove_ = std::exchange(other.remove_, nullptr);
    }
    return *this;
  }
  ~HookHandle() { remove(); }
  void remove() {
    if (auto remove = std::exchange(remove_, nullptr)) remove();
  }
  void detach() { remove_ = nullptr; }  // the hook stays for good

 private:
  std::function<void()> remove_;
};
[[nodiscard]] HookHandle register_grad_hook(const Tensor& leaf, GradHook hook);

// The same memory and version() without history: a leaf that wants no gradient, whatever `tensor` is. A change in place
// through one is a change of the other.
Tensor detach(const Tensor& tensor);

// While one lives, operators of this thread record nothing: evaluation.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;
  static bool active();

 private:
  bool before_;
};

// While one lives, operators of this thread record again although a NoGrad is around it.
class EnableGrad {
 public:
  EnableGrad();
  ~EnableGrad();
  EnableGrad(const EnableGrad&) = delete;
  EnableGrad& operator=(const EnableGrad&) = delete;

 private:
  bool before_;
};

}  // namespace lockstep
#pragma GCC visibility pop
