// The reducer averages buckets of gradients across ranks while backward is still running.
//
// It does not depend on tensors or autograd, only on {name, count, dtype, device} and mark_ready(index), so a model of
// any framework can use it. In one backward pass, call mark_ready() for each gradient as it becomes final, then
// finish().
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
  // If set, this rank's values are multiplied by its result before their buckets are reduced. It is called once per
  // pass, before the first bucket; an exception ends the pass. A factor of 1 changes nothing. For gradients of float32,
  // float16 and bfloat16.
  std::function<float()> factor = {};
  // If set, they are called for one bucket after the other. At `before_reduction` the bucket's memory holds this rank's
  // values, before the factor. At `after_reduction`, which is called in finish() or where set_on_reduced() applies, it
  // holds the average (on a GPU for work queued on the default stream from then on), while later buckets may still be
  // in flight. An exception ends the pass.
  std::function<void(std::size_t bucket)> before_reduction = {}, after_reduction = {};
};

// The times of one bucket in the last pass, in seconds since the pass's first mark_ready().
struct BucketTimes {
  double ready = 0;     // its last gradient became ready
  double launched = 0;  // its reduction was started, after those of the buckets before it
  double waited = 0;    // time that finish() blocked for it
};

class Reducer {
 public:
  // Collective. Allocates every bucket from the group's backend, registered and zeroed. The group must outlive the
  // reducer. Throws InvalidArgument if the comm hook refuses the gradients. After the first pass the ranks compare the
  // comm hook's results; a difference throws MismatchError on all ranks.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<GradientInfo> gradients, ReducerOptions options = {});
  ~Reducer();  // blocks until pending reductions (on a GPU: the last pass) are done; never throws

  // Returns the memory of gradient i inside its bucket, valid for the reducer's lifetime. Write gradients there.
  Buffer slot(std::size_t gradient) const;

  // Returns the memory of a bucket and the zeros after it: `ranks` slices of slice_bytes().
  Buffer memory(std::size_t bucket) const;

  // From the next pass on, `start` starts the reduction of a bucket instead of the options' hook; its result need not
  // be an average. Empty: back to that hook. Throws InvalidArgument during a pass.
  void reduce_by(std::function<Work(std::size_t bucket)> start);
  // From the next pass on, `call` is called with each reduced bucket, in bucket order, on the thread that marks
  // gradients: in mark_ready() as soon as the result is available, else in finish(). An exception ends the pass. Empty:
  // no calls. Throws InvalidArgument during a pass.
  void set_on_reduced(std::function<void(std::size_t bucket)> call);

  // Gradient i is final. Starts every full bucket, strictly in bucket order. Throws Error with the gradient's name if
  // it was already marked in this pass, and passes on the exception of a failed collective.
  void mark_ready(std::size_t gradient);
  bool is_ready(std::size_t gradient) const;  // whether it was marked in this pass

  // Ends the pass. Gradients that were not marked are set to zero and reduced as such (other ranks may have them). Then
  // blocks until all buckets are averaged (GPU: makes the default stream wait). Returns the indices of the gradients
  // that were not marked; their slots then hold the other ranks' average.
  std::vector<std::size_t> finish();

  // Call after finish(), on all ranks, with the gradients that no rank marked. The comm hook reverts the pass's changes
  // to its state for them.
  void undo(std::span<const std::size_t> gradients);

  // The order in which gradients became ready in the last pass; those that were not marked are last.
  std::span<const std::size_t> arrival_order() const;

  // Collective, between passes, with the same order on all ranks. Plans the buckets for gradients that become ready in
  // this order (see plan_buckets) and allocates them. Each gradient's memory moves with its values, and `moved` is
  // called with the new slot; the caller must then release the old one. An old bucket is freed when all its gradients
  // have moved. Blocks until pending reductions are done. Returns false, without moving anything, if the plan is
  // unchanged.
  bool rebuild(std::span<const std::size_t> order,
               const std::function<void(std::size_t gradient, const Buffer& slot)>& moved);

  // Drops a pass that an exception ended: blocks until its pending reductions are done and forgets its gradients. Other
  // ranks that continue wait for the dropped buckets until their deadline.
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
