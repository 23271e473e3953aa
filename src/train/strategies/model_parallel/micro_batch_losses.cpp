#include "src/train/strategies/model_parallel/micro_batch_losses.h"

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/train/strategies/model_parallel/pipeline_stage.h"

namespace lockstep::train {

void MicroBatchLosses::begin(int micro_batches) {
  *this = {};
  part_ = 1 / static_cast<float>(micro_batches);
}

void MicroBatchLosses::count(const Tensor& loss, const nn::AddedLosses& added) {
  const NoGrad no_grad;
  const bool is_first = sums_.empty();
  std::vector<NamedTensor> losses = added.all();
  has_loss_ = loss.defined();
  if (has_loss_) losses.insert(losses.begin(), {"loss", loss});
  if (!is_first && sums_.size() != losses.size())
    throw InvalidArgument(
        "{}: the modules of a stage have added {} losses for a micro-batch, and {} for the one before", kModelParallel,
        losses.size() - (has_loss_ ? 1 : 0), sums_.size() - (has_loss_ ? 1 : 0));
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const Tensor value = detach(losses[i].tensor);
    if (is_first)
      sums_.push_back({losses[i].name, value});
    else
      sums_[i].tensor = sums_[i].tensor + value;
  }
}

void MicroBatchLosses::end() {
  if (sums_.empty()) return;
  const NoGrad no_grad;
  Tensor total;
  for (const auto& [name, sum] : sums_) {
    const Tensor mean = sum * part_;
    means_.add(name, mean);
    total = total.defined() ? total + mean : mean;
  }
  means_.add("total_loss", total);
  if (has_loss_) loss_ = sums_.front().tensor.item() * part_;
  if (sums_.size() > (has_loss_ ? 1 : 0)) added_ = total.item() - loss_;
}

}  // namespace lockstep::train
