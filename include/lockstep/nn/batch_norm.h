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
  bool affine = true;  // has a weight (ones at first) and a bias (zeros)
  Activation activation = Activation::kNone;
};

// Of activations (N, ..., C); parameters weight and bias (C), buffers running_mean (zeros at first) and
// running_variance (ones): PyTorch's defaults. In training by the batch's statistics, which the running ones follow; in
// evaluation by the running ones.
class BatchNorm : public Module {
 public:
  explicit BatchNorm(std::int64_t channels, const BatchNormLayerOptions& options = {});
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return exchange_ ? "SyncBatchNorm" : "BatchNorm"; }
  std::string extra_repr() const override;

  // From now on the statistics in training are those of all parts of the batch (see BatchNormOptions); null: of this
  // one alone. For groups of ranks ddp/sync_batch_norm.h calls it.
  void exchange_statistics(std::shared_ptr<StatisticsExchange> exchange) { exchange_ = std::move(exchange); }
  bool exchanges_statistics() const { return exchange_ != nullptr; }

  Tensor weight, bias, running_mean, running_variance;

 private:
  BatchNormLayerOptions options_;
  std::shared_ptr<StatisticsExchange> exchange_;
};
using BatchNorm1d = BatchNorm;
using BatchNorm2d = BatchNorm;

}  // namespace lockstep::nn
#pragma GCC visibility pop
