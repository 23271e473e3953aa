// What becomes of the averages before backward returns: the norm over all of them, by which they are clipped, and a
// search for those that are infinite or no number. Both follow from the sum of squares of each gradient, which is such
// a number itself when one of its values is. It is taken bucket by bucket, while later buckets travel. Averages are the
// same bits on all ranks, and so is what follows from them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp_options.h"
#include "lockstep/reduce/reducer.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Of a pass that leaves no rank all averages (ZeroRedundancyOptimizer): which of them a rank has, and how the ranks
// come to the sums of all.
class PartialAverages {
 public:
  virtual ~PartialAverages() = default;
  // True: gradients stay each rank's own, and sum_squares() reads those of all ranks.
  virtual bool keeps_own() const = 0;
  // Else, of gradient i, by the reducer's index: where this rank's averages begin, and how many they are, in elements.
  virtual std::pair<std::size_t, std::size_t> range_of(std::size_t gradient) const = 0;
  // At the end of a pass, on all ranks. `sums`, on the device, in the order of buckets and slots: of the squares of
  // this rank's averages; afterwards of all averages, the same bits on all ranks.
  virtual void sum_squares(const Tensor& sums) = 0;
};

class GradientCheck {
 public:
  // `group` and `parameters` must outlive it.
  GradientCheck(ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                const DistributedDataParallelOptions& options);

  // Adds what the reducer is to call, if anything is asked for.
  ReducerOptions watching(ReducerOptions options);
  // Where the gradients lie from now on. The first time: InvalidArgument for a comm hook that a skipped step would
  // spoil.
  void follow(const Reducer& reducer);
  // From the next pass on; null: each rank has all averages. It must outlive its passes.
  void set_partial(const Reducer& reducer, PartialAverages* partial);

  // At the end of a pass, once it is known which parameters have a gradient: clips them. Where one is not finite, and
  // is not to be ignored: collective; no parameter keeps its gradient; throws Error on all ranks if that was asked.
  // `step` is for messages.
  void finish(std::uint64_t step);

  bool is_on() const { return max_norm_ > 0; }  // with max_grad_norm or on_nonfinite_gradient
  float last_norm() const;
  // The factor by which the last pass's gradients were clipped, or, where they stay each rank's own, by which their
  // averages are to be. Null: gradients are not clipped.
  const float* clip_factor() const;
  OnNonfiniteGradient on_nonfinite() const { return on_nonfinite_; }
  std::int64_t skipped_steps() const { return skipped_steps_; }
  const std::string& last_skipped() const { return last_skipped_; }

 private:
  bool can_stop() const { return on_nonfinite_ != OnNonfiniteGradient::kIgnore; }
  void check_hook() const;
  using Tensors = std::vector<UpdateTensor>;
  void sum_squares(std::size_t bucket, const Tensors& tensors, const Tensor& sums) const;
  void take_norm();
  void clip();
  bool has_nonfinite(const Tensor& sums);
  void stop(std::uint64_t step);
  std::string report(std::uint64_t step);
  void drop_gradients();

  ProcessGroup& group_;
  const std::vector<NamedTensor>& parameters_;
  const float max_norm_;  // INFINITY: nothing is clipped; 0: nothing is asked for
  const OnNonfiniteGradient on_nonfinite_;
  optim::LossScaler* const loss_scaler_;
  const CommHook hook_;
  Device* device_ = nullptr;
  // In the order of buckets and slots:
  std::vector<std::size_t> order_;   // parameters
  Tensors tensors_;                  // their gradients
  Tensors averages_;                 // the parts of them that hold averages after the reduction
  std::vector<std::size_t> begins_;  // of each bucket, and the end of the last
  PartialAverages* partial_ = nullptr;
  Tensor own_sums_, sums_;  // on the device: of squares, before and after the reduction
  std::vector<double> host_sums_;
  Tensor result_;                      // on the device: a NormResult
  std::vector<UpdateTensor> present_;  // what is clipped
  std::int64_t skipped_steps_ = 0;
  std::string last_skipped_;
};

}  // namespace lockstep
