// Checks of the averages before backward returns: their norm, for clipping, and a search for values that are infinite
// or NaN. Both follow from each gradient's sum of squares, which is not finite if one of its values is not. The sums
// are computed bucket by bucket while later buckets are in flight. All ranks have the same bits of the averages, and so
// of the results.
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
#include "src/ddp/checks/tensor_gradients.h"
#include "src/reduce/passes/nonfinite_steps.h"

namespace lockstep {

// For a pass after which no rank has all averages (ZeroRedundancyOptimizer): which of them a rank has, and how the
// ranks get the sums over all.
class PartialAverages {
 public:
  virtual ~PartialAverages() = default;
  // Returns true if gradients stay unreduced, and sum_squares() reads those of all ranks.
  virtual bool keeps_own() const = 0;
  // Otherwise returns the start and number, in elements, of this rank's averages of gradient i (the reducer's index).
  virtual std::pair<std::size_t, std::size_t> range_of(std::size_t gradient) const = 0;
  // Called at the end of a pass, on all ranks. `sums` is on the device, in the order of buckets and slots. It holds the
  // sums of squares of this rank's averages and receives those of all averages, with the same bits on all ranks.
  virtual void sum_squares(const Tensor& sums) = 0;
};

class GradientCheck {
 public:
  // The references must outlive it.
  GradientCheck(ProcessGroup& group, const std::vector<NamedTensor>& parameters, TensorGradients& owner,
                const DistributedDataParallelOptions& options);

  // Adds the reducer's callbacks if an option needs them.
  ReducerOptions watching(ReducerOptions options);
  // Sets where the gradients are from now on. The first call throws InvalidArgument for a comm hook whose state a
  // skipped step would corrupt.
  void follow(const Reducer& reducer);
  // Applies from the next pass on. Null: each rank has all averages. `partial` must outlive its passes.
  void set_partial(const Reducer& reducer, PartialAverages* partial);

  // Called at the end of a pass, when it is known which parameters have a gradient. Clips the gradients. If one is not
  // finite and that is not to be ignored, it is collective: no parameter keeps its gradient, and it throws Error on all
  // ranks if requested. `step` is for messages.
  void finish(std::uint64_t step);

  bool is_on() const { return max_norm_ > 0; }  // with max_grad_norm or on_nonfinite_gradient
  float last_norm() const;
  // Returns the factor by which the last pass's gradients were clipped, or by which their averages must be if they stay
  // unreduced. Null: no clipping.
  const float* clip_factor() const;
  OnNonfiniteGradient on_nonfinite() const { return nonfinite_.choice(); }
  std::int64_t skipped_steps() const { return nonfinite_.skipped_steps(); }
  const std::string& last_skipped() const { return nonfinite_.last_skipped(); }

 private:
  bool can_stop() const { return nonfinite_.can_stop(); }
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
  const float max_norm_;  // INFINITY: no clipping; 0: no check
  optim::LossScaler* const loss_scaler_;
  const CommHook hook_;
  NonfiniteSteps nonfinite_;
  Device* device_ = nullptr;
  // These are in the order of buckets and slots.
  std::vector<std::size_t> order_;   // parameters
  Tensors tensors_;                  // their gradients
  Tensors averages_;                 // the parts that hold averages after the reduction
  std::vector<std::size_t> begins_;  // start of each bucket, and the end of the last
  PartialAverages* partial_ = nullptr;
  Tensor own_sums_, sums_;  // on the device: sums of squares before and after the reduction
  std::vector<double> host_sums_;
  Tensor result_;                      // on the device: a NormResult
  std::vector<UpdateTensor> present_;  // gradients to be clipped
};

}  // namespace lockstep
