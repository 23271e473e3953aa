// Batch normalisation as a layer.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/autograd/normalization.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct BatchNormLayerOptions {
  float momentum = 0.1F;
  float eps = 1e-5F;
  bool affine = true;  // has a weight (initially 1) and a bias (initially 0)
  Activation activation = Activation::kNone;
};

// Normalises activations (N, ..., C). Parameters weight and bias (C), buffers running_mean (initially 0) and
// running_var (initially 1), as in PyTorch. Training uses the batch's statistics and updates the running ones;
// evaluation uses the running ones. Loading a state dict of PyTorch skips its num_batches_tracked, which only a
// momentum of None needs; and a state dict of earlier versions may call running_var running_variance.
class BatchNorm : public Module {
 public:
  explicit BatchNorm(std::int64_t channels, const BatchNormLayerOptions& options = {});
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return exchange_ ? "SyncBatchNorm" : "BatchNorm"; }
  std::string extra_repr() const override;

  // From now on training uses the statistics of all parts of the batch (see BatchNormOptions); null: of this part only.
  // ddp/sync_batch_norm.h calls it for groups of ranks.
  void exchange_statistics(std::shared_ptr<StatisticsExchange> exchange) { exchange_ = std::move(exchange); }
  bool exchanges_statistics() const { return exchange_ != nullptr; }

  Tensor weight, bias, running_mean, running_var;

 private:
  BatchNormLayerOptions options_;
  std::shared_ptr<StatisticsExchange> exchange_;
};
using BatchNorm1d = BatchNorm;
using BatchNorm2d = BatchNorm;

}  // namespace lockstep::nn
#pragma GCC visibility pop
