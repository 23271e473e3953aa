// Comm hooks: what reduces a bucket of gradients across the ranks. Without one it is averaged; reduce/hooks.h has
// compressing ones.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/shape.h"
#include "lockstep/reduce/bucket_plan.h"

#pragma GCC visibility push(default)
namespace lockstep {

// A gradient's part of a bucket.
struct GradSlot {
  std::string_view name;  // the parameter's
  Shape shape;
  std::size_t offset = 0;    // elements from the bucket's begin
  bool has_gradient = true;  // false: this rank's pass made none, and its values are zero; other ranks may have one
};

// A bucket that is about to be reduced. Buckets may be rebuilt after the first pass: what a hook keeps from pass to
// pass, it keeps by name.
struct GradBucket {
  int index = 0;
  std::size_t count = 0;  // elements, the padding between slots included, which is zero
  void* buffer = nullptr;
  DType dtype = DType::kFloat32;
  DeviceKind device = DeviceKind::kCpu;
  std::span<const GradSlot> slots =
      {};                // in the bucket's order; valid during the call, and as long as the layout stands
  bool is_last = false;  // of its pass
  int message = 0;       // of what a hook sends by another one: its how-many-th message of this bucket
};

// A part of a hook's state, for checkpoints: `count` elements, of which those of a GPU are read and written on its
// default stream.
struct HookState {
  std::string name;
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kFloat32;
  bool is_each_ranks_own = false;  // else the same on all ranks
  Device* device = nullptr;        // the GPU on which they lie; null: in host memory
};

// A hook with memory of its own, or one that others stand on. Used by one wrapper at a time, from its thread.
class BucketHook {
 public:
  virtual ~BucketHook() = default;

  // "power_sgd (rank 2) over bf16": the same on all ranks, compared when a module is wrapped.
  virtual std::string describe() const = 0;
  // "", or why it cannot reduce these gradients: then wrapping is refused on all ranks.
  virtual std::string refusal(std::span<const GradientInfo> /*gradients*/) const { return ""; }
  // Before the first pass. Called once a wrapper; state by name stays where the gradients are the same.
  virtual void prepare(const ProcessGroup& /*group*/, std::span<const GradientInfo> /*gradients*/) {}

  // Starts the reduction of a bucket and returns its Work; when that is done, the average is in place, the same bits on
  // all ranks. Called in bucket order, at the same place among the group's calls on all ranks. What it throws ends the
  // group for all ranks.
  virtual Work reduce(ProcessGroup& group, const GradBucket& bucket) = 0;

  // After a pass, on all ranks: no rank had a gradient of this parameter, and its average is dropped. What the pass
  // made of state that the hook keeps for it must become what it was before: an error that was sent counts nowhere.
  // Slots without `has_gradient` show in reduce() for which parameters that may happen. A hook that others stand on
  // hands it on to `next`.
  virtual void undo(std::string_view /*parameter*/) {}

  // Valid after prepare(). Read and written between passes.
  virtual std::vector<HookState> state() { return {}; }
  // False: it leaves each rank its own gradients, or those of a part of the ranks.
  virtual bool averages() const { return true; }
  // Keeps nothing by parameter: it can send another hook's messages, which are no gradients.
  virtual bool sends_any_message() const { return false; }
  // Can a graph of the GPU repeat what it queues (DistributedDataParallel::capture)? Not if it counts or decides on the
  // host.
  virtual bool can_be_captured() const { return false; }
};

// A hook, as options take it: a function (ProcessGroup&, const GradBucket&) -> Work, which does what
// BucketHook::reduce() says, or a BucketHook. Copies share it. Empty: the average, one all_reduce with ReduceOp::kAvg.
class CommHook {
 public:
  CommHook() = default;
  template <std::derived_from<BucketHook> Hook>
  CommHook(std::shared_ptr<Hook> hook) : hook_(std::move(hook)) {}
  template <typename Function>
  requires std::is_invocable_r_v<Work, Function&, ProcessGroup&, const GradBucket&> &&
      (!std::same_as<std::decay_t<Function>, CommHook>)CommHook(Function function)
      : hook_(std::make_shared<OfFunction<Function>>(std::move(function))) {}

  explicit operator bool() const { return hook_ != nullptr; }
  BucketHook& operator*() const { return *hook_; }
  BucketHook* operator->() const { return hook_.get(); }

  // The hook's reduction, or the average.
  Work operator()(ProcessGroup& group, const GradBucket& bucket) const;

 private:
  template <typename Function>
  class OfFunction : public BucketHook {
   public:
    explicit OfFunction(Function function) : function_(std::move(function)) {}
    std::string describe() const override { return "of the program's own"; }
    Work reduce(ProcessGroup& group, const GradBucket& bucket) override { return function_(group, bucket); }
    bool sends_any_message() const override { return true; }
    bool can_be_captured() const override { return true; }

   private:
    Function function_;
  };

  std::shared_ptr<BucketHook> hook_;
};

}  // namespace lockstep
#pragma GCC visibility pop
