// Autograd's state of a tensor: whether it requires a gradient, the memory of that gradient, and its hooks.
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

// Marks a leaf (a parameter) of float32, float16 or bfloat16: backward will compute its gradient into grad().
// Optimizers accept only float32.
void require_grad(const Tensor& leaf, bool wanted = true);
bool requires_grad(const Tensor& tensor);  // true for a marked leaf, and for a result that depends on one

// Sets the name of the leaf in messages. A module names its parameters by their path from the outermost module to which
// it has been added.
void set_name(const Tensor& leaf, const std::string& name);
// The tensor in messages: "parameter 'block.first.weight' of shape (8, 4)", or "a tensor of shape (8, 4)".
std::string describe(const Tensor& tensor);
// Describes an operator's argument `what`: "weight 'block.first.weight'", or just "weight" for a tensor without a name
// or an undefined one.
std::string name_argument(std::string_view what, const Tensor& tensor);

// The gradient of a leaf, of the leaf's shape and type. Undefined until the first backward or bind_grad(). Throws
// InvalidArgument while it is withheld.
Tensor grad(const Tensor& leaf);
// True if backward or mark_grad_written() wrote the gradient since the last clear_grad().
bool has_grad(const Tensor& leaf);
// Resets to "no gradient": the next backward overwrites the memory instead of adding to it. Touches no memory.
void clear_grad(const Tensor& leaf);
// Declares that the gradient's memory holds a valid value that backward did not write (the reducer's zeros), or that
// the program has replaced it by the value to step with (an average over the ranks that the program computed itself).
void mark_grad_written(const Tensor& leaf);
// Until clear_grad(), grad() throws with `reason`, a string literal. For a wrapper whose memory does not hold the value
// that a reader expects, or that could no longer take a change into account; the wrapper itself uses grad_buffer().
void withhold_grad(const Tensor& leaf, const char* reason);
bool is_grad_withheld(const Tensor& leaf);
// Until clear_grad() or mark_grad_written(), an optimizer's step() rejects the gradient with `reason`, a string
// literal; null allows it again. For a wrapper that has not averaged the gradient yet. The gradient can still be read
// and changed.
void refuse_step(const Tensor& leaf, const char* reason);
const char* step_refusal(const Tensor& leaf);  // null: the step is allowed
// The gradient's memory, even if it is withheld; empty before the first backward or bind_grad().
Buffer grad_buffer(const Tensor& leaf);
// From now on the gradient is stored in this memory (a slot in a bucket). The present value, if any, is copied there.
void bind_grad(const Tensor& leaf, Buffer slot);

// Called on the backward thread when this process has computed the leaf's entire gradient of the pass. Hooks run in
// order of registration and may change grad() in place. DistributedDataParallel sends the gradient after all hooks of
// the leaf have returned, whether they were registered before or after the module was wrapped: a hook sees and changes
// this rank's gradient, never the average.
using GradHook = std::function<void(const Tensor& leaf)>;

// Removes its hook when it is destroyed, or by remove(). Movable.
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
  void detach() { remove_ = nullptr; }  // keeps the hook until the leaf is destroyed

 private:
  std::function<void()> remove_;
};
[[nodiscard]] HookHandle register_grad_hook(const Tensor& leaf, GradHook hook);

// Shares the memory and version() of `tensor`, but has no history: a leaf that requires no gradient. Changing one in
// place changes the other.
Tensor detach(const Tensor& tensor);

// While a NoGrad lives, operators of this thread record nothing; for evaluation.
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

// While an EnableGrad lives, operators of this thread record again, even inside a NoGrad.
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
