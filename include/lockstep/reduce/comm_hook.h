// Comm hooks reduce a bucket of gradients across the ranks. Without one, buckets are averaged; reduce/hooks.h has hooks
// that compress.
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
  std::string_view name;  // name of the parameter
  Shape shape;
  std::size_t offset = 0;    // in elements from the start of the bucket
  bool has_gradient = true;  // false: this rank's pass made none and the values are zero; other ranks may have one
};

// A bucket that is about to be reduced. Buckets may be rebuilt after the first pass, so a hook must key the state that
// it keeps between passes by name.
struct GradBucket {
  int index = 0;
  std::size_t count = 0;  // elements, including the padding between slots, which is zero
  void* buffer = nullptr;
  DType dtype = DType::kFloat32;
  DeviceKind device = DeviceKind::kCpu;
  std::span<const GradSlot> slots = {};  // in the bucket's order; valid until the buckets are rebuilt
  bool is_last = false;                  // last bucket of its pass
  int message = 0;  // when a hook sends through another one: the number of its message for this bucket
};

// A part of a hook's state for checkpoints: `count` elements. On a GPU they are read and written on its default stream.
struct HookState {
  std::string name;
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kFloat32;
  bool is_each_ranks_own = false;  // else the same on all ranks
  Device* device = nullptr;        // the GPU that holds the elements; null: host memory
};

// A hook with its own memory, or one that other hooks send through. Used by one wrapper at a time, from that wrapper's
// thread.
class BucketHook {
 public:
  virtual ~BucketHook() = default;

  // Describes the hook and its options, such as "power_sgd (rank 2) over bf16". Wrapping a module compares it between
  // ranks.
  virtual std::string describe() const = 0;
  // Returns "", or the reason why the hook cannot reduce these gradients; wrapping then throws on all ranks.
  virtual std::string refusal(std::span<const GradientInfo> /*gradients*/) const { return ""; }
  // Called once per wrapper, before the first pass. State kept by name survives when the gradients are the same.
  virtual void prepare(const ProcessGroup& /*group*/, std::span<const GradientInfo> /*gradients*/) {}

  // Starts the reduction of a bucket and returns its Work. When it is done, the average must be in the buffer, with the
  // same bits on all ranks. Called in bucket order, at the same position among the group's calls on all ranks. An
  // exception ends the group on all ranks.
  virtual Work reduce(ProcessGroup& group, const GradBucket& bucket) = 0;

  // Called after a pass, on all ranks, for a parameter that had a gradient on no rank, so that its average is dropped.
  // The hook must restore the state that it had for the parameter before the pass, because an error that was sent has
  // no effect anywhere. In reduce(), slots without `has_gradient` show the parameters for which this can happen. A hook
  // that sends through `next` must pass the call on.
  virtual void undo(std::string_view /*parameter*/) {}

  // Valid after prepare(). Read and written between passes.
  virtual std::vector<HookState> state() { return {}; }
  // Returns false when each rank keeps its own gradients, or the average of only some ranks.
  virtual bool averages() const { return true; }
  // Returns true when the hook keeps no state by parameter, so that it can send messages of another hook, which are not
  // gradients.
  virtual bool sends_any_message() const { return false; }
  // Returns whether a GPU graph can replay the queued work (DistributedDataParallel::capture). A hook that counts or
  // decides on the host cannot be captured.
  virtual bool can_be_captured() const { return false; }
};

// A hook as options take it: a function (ProcessGroup&, const GradBucket&) -> Work that behaves like
// BucketHook::reduce(), or a BucketHook. Copies share the hook. An empty one averages: one all_reduce with
// ReduceOp::kAvg.
class CommHook {
 public:
  CommHook() = default;
  template <std::derived_from<BucketHook> Hook> CommHook(std::shared_ptr<Hook> hook) : hook_(std::move(hook)) {}
  template <typename Function>
  requires std::is_invocable_r_v<Work, Function&, ProcessGroup&, const GradBucket&> &&
      (!std::same_as<std::decay_t<Function>, CommHook>)CommHook(Function function)
      : hook_(std::make_shared<OfFunction<Function>>(std::move(function))) {}

  explicit operator bool() const { return hook_ != nullptr; }
  BucketHook& operator*() const { return *hook_; }
  BucketHook* operator->() const { return hook_.get(); }

  // Runs the hook's reduction, or the average if empty.
  Work operator()(ProcessGroup& group, const GradBucket& bucket) const;

 private:
  template <typename Function> class OfFunction : public BucketHook {
   public:
    explicit OfFunction(Function function) : function_(std::move(function)) {}
    std::string describe() const override { return "defined by the program"; }
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
