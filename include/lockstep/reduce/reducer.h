// The reducer: gradients become ready one by one, full buckets are averaged across ranks while backward still runs.
//
// Knows neither tensors nor autograd, only {name, count, dtype, device} and mark_ready(index), so that any framework's
// model can use it. One backward pass is: mark_ready() for each gradient as it becomes final, then finish().
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/reduce/bucket_plan.h"
#include "lockstep/reduce/comm_hook.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct ReducerOptions {
  BucketCaps caps = {std::size_t{1} << 20, std::size_t{25} << 20};
  CommHook comm_hook = {};  // empty: average
  // Not empty: this rank's values are multiplied by it before their buckets are reduced. Asked once a pass, before its
  // first bucket; what it throws ends the pass. At 1 nothing is touched. For gradients of float32, float16 and
  // bfloat16.
  std::function<float()> factor = {};
  // Not empty: called for one bucket behind the other. `before_reduction`: its memory holds this rank's own values,
  // before the factor; `after_reduction`: in finish(), or where tell_reduced() asks, it holds the average (on a GPU for
  // what is queued on the default stream from now on), while later buckets may still be under way. What they throw ends
  // the pass.
  std::function<void(std::size_t bucket)> before_reduction = {}, after_reduction = {};
};

// The times of the last pass. They are seconds since the pass's first mark_ready().
struct BucketTimes {
  double ready = 0;     // its last gradient arrived
  double launched = 0;  // the all-reduce was issued (buckets before it were launched)
  double waited = 0;    // finish() blocked this long for it
};

class Reducer {
 public:
  // Collective: allocates every bucket from the group's backend, registered and zeroed. The group must outlive it.
  // InvalidArgument where the comm hook refuses the gradients. After the first pass the ranks compare what a comm hook
  // left: MismatchError on all of them.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<GradientInfo> gradients, ReducerOptions options = {});
  ~Reducer();  // waits for what is under way, on a GPU for the last pass; never throws

  // The memory of gradient i inside its bucket, valid as long as the reducer lives: write gradients here.
  Buffer slot(std::size_t gradient) const;

  // The memory of a bucket, and zeros behind it: `ranks` slices of slice_bytes().
  Buffer memory(std::size_t bucket) const;

  // From the next pass on: `start` begins the reduction of a bucket, in place of the options' hook, and may leave other
  // things than averages. Empty: that hook again. InvalidArgument within a pass.
  void reduce_by(std::function<Work(std::size_t bucket)> start);
  // From the next pass on: `call` gets each bucket whose result has come, in bucket order, on the thread that marks
  // gradients: in mark_ready() as soon as it is found there, else in finish(). What it throws ends the pass. Empty:
  // nobody asks. InvalidArgument within one.
  void tell_reduced(std::function<void(std::size_t bucket)> call);

  // Gradient i is final. Starts every bucket that is full, strictly in bucket order. Throws Error naming the gradient
  // when it was marked already in this pass, and what a failed collective threw.
  void mark_ready(std::size_t gradient);
  bool is_ready(std::size_t gradient) const;  // was it marked in this pass?

  // Ends the pass: gradients that never came are set to zero and reduced as such (other ranks may have them), then
  // waits until all buckets are averaged (GPU: orders the default stream after them). Returns the indices of the
  // gradients that never came; their slots hold the other ranks' average afterwards.
  std::vector<std::size_t> finish();

  // After finish(), on all ranks: gradients that came on no rank. The comm hook takes back what the pass made of the
  // state that it keeps for them.
  void undo(std::span<const std::size_t> gradients);

  // The order in which gradients became ready in the last pass, those last that finish() waited for in vain.
  std::span<const std::size_t> arrival_order() const;

  // Collective, between passes, the same order on all ranks: buckets are planned anew for gradients that become ready
  // in this order (see plan_buckets), and allocated; each gradient's memory moves, with its values. `moved` is called
  // with its new slot: whoever holds the old one lets it go then. A bucket of the old ones is freed as soon as all in
  // it have moved. Waits for what is under way. Returns false, and nothing has moved, where the plan is what it was.
  bool rebuild(std::span<const std::size_t> order,
               const std::function<void(std::size_t gradient, const Buffer& slot)>& moved);

  // Drops a pass that an exception ended: waits for what is under way and forgets which gradients came. Other ranks
  // that went on wait for the dropped buckets until their deadline.
  void abandon_pass() noexcept;

  // True between the first mark_ready() and finish().
  bool in_pass() const;

  const std::vector<GradientInfo>& gradients() const;
  const std::vector<BucketLayout>& buckets() const;
  std::span<const BucketTimes> last_pass() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
#pragma GCC visibility pop
