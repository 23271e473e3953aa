// A small model trained with DDP, plainly or with ZeroRedundancyOptimizer: two groups of parameters, several buckets,
// and sizes that no number of ranks divides.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/ddp/zero.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/random.h"
#include "tests/optim/every_optimizer.h"
#include "tests/support/in_mib.h"

namespace lockstep::testing {

struct ZeroNet : nn::Sequential {
  explicit ZeroNet(std::int64_t width) {
    append_named<nn::Linear>("a", 5, width);
    append_named<nn::Linear>("middle", width, width);
    append_named<nn::Linear>("b", width, 3);
  }
  bool leaves_middle = false;
  Tensor forward(const Tensor& x) override {
    const Tensor first = relu((*children()[0].second)(x));
    return (*children()[2].second)(leaves_middle ? first : relu((*children()[1].second)(first)));
  }
};

// A user-defined elementwise optimizer with its own loop, which only reads `grad` and writes `weight`.
class LoopSgd : public optim::Optimizer {
 public:
  LoopSgd(std::vector<NamedTensor> parameters, optim::LossScaler* scaler)
      : Optimizer(std::move(parameters), {.kind = "LoopSgd", .lr = 0.1F, .weight_decay = 0, .loss_scaler = scaler}) {}

 private:
  void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable&, Stream&) override {
    if (group.loss_scale != nullptr && group.loss_scale->found_bad != 0) return;
    const float rate = group.loss_scale == nullptr ? *group.lr : *group.lr / group.loss_scale->scale;
    for (const UpdateTensor& tensor : tensors)
      for (std::int64_t i = 0; i < tensor.count; ++i) tensor.weight[i] -= rate * tensor.grad[i];
  }
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<NamedTensor>, optim::LossScaler*)>;

// By name: every optimizer with all of its state, SGD without momentum, and LoopSgd.
inline const std::map<std::string, MakeOptimizer>& zero_optimizers() {
  static const std::map<std::string, MakeOptimizer> all = [] {
    std::map<std::string, MakeOptimizer> makers;
    for (const optim::OptimizerCase& each : optim::every_optimizer())
      makers[each.name.substr(0, each.name.find('_'))] = each.make;
    makers["plain_sgd"] = optim::optimizer_cases().front().make;
    makers["loop_sgd"] = [](std::vector<NamedTensor> parameters, optim::LossScaler* scaler) {
      return std::make_unique<LoopSgd>(std::move(parameters), scaler);
    };
    return makers;
  }();
  return all;
}

struct ZeroSettings {
  DistributedDataParallelOptions options = {.bucket_cap_mb = {in_mib(64), in_mib(512)}};
  bool leaves_some = false, gathers = false, weighs = false, joins = false, scales = false, steps_in_backward = false,
       begins_epochs = false;
  float bad_value = 0;  // if not 0: added to the last rank's gradient of "b.bias" in the fourth step
};

struct ZeroTrainee {
  ZeroTrainee(const std::shared_ptr<ProcessGroup>& group, const std::string& kind, bool is_zero,
              std::int64_t width = 13, const ZeroSettings& settings = {})
      : settings(settings), net((manual_seed(3), width)), ddp(net, group, options_with(scaler)) {
    std::vector<NamedTensor> weights = ddp.parameters(), biases;
    for (const NamedTensor& each : weights)
      if (each.tensor.shape().dims() == 1) biases.push_back(each);
    std::erase_if(weights, [](const NamedTensor& each) { return each.tensor.shape().dims() == 1; });
    optimizer = zero_optimizers().at(kind)(weights, settings.scales ? &scaler : nullptr);
    optimizer->add_group({.parameters = biases, .lr_factor = 2, .weight_decay = 0});
    net.leaves_middle = settings.leaves_some;
    if (is_zero) zero = std::make_unique<ZeroRedundancyOptimizer>(ddp, *optimizer);
  }

  // Samples differ between ranks. With loss scaling, rank 1's gradient of "b.bias" is infinite in the fourth step,
  // which only the rank with that slice sees.
  void backward(int step) {
    const int rank = ddp.group().rank();
    std::vector<float> values(4 * 5);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = std::sin(static_cast<float>(i * 7 + 13) * 0.1F * static_cast<float>(step * 3 + rank + 1));
    const Tensor outputs = ddp(Tensor::from<float>(values, {4, 5}));
    Tensor loss = mean(outputs * outputs);
    if (settings.scales && step == 3 && rank == 1) {
      const Tensor bias = ddp.parameters().back().tensor;
      loss = loss + scale(mean(bias * bias), INFINITY);
    }
    if (settings.bad_value != 0 && step == 3 && rank == ddp.group().world_size() - 1) {
      const Tensor bias = ddp.parameters().back().tensor;
      loss = loss + scale(mean(bias * bias), settings.bad_value);
    }
    if (settings.scales) loss = scaler.scale(loss);
    loss.backward();
  }

  void run_step(int step) {
    optimizer->set_lr(optimizer->lr() * 0.97F);
    optimizer->zero_grad();
    if (settings.gathers) {
      const auto local = ddp.no_sync();
      backward(step + 100);
    }
    if (settings.weighs) ddp.set_weight(ddp.group().rank() == 0 ? 3 : 1);
    backward(step);
    if (!settings.steps_in_backward) optimizer->step();
  }

  // In join() the last rank has two steps fewer.
  void run(int steps) {
    const bool is_short = settings.joins && ddp.group().rank() == ddp.group().world_size() - 1;
    const auto follow_rate = [this] { optimizer->set_lr(optimizer->lr() * 0.97F); };
    const auto train = [&] {
      if (settings.begins_epochs) ddp.begin_epoch(steps);
      for (int step = 0; step < steps - (is_short ? 2 : 0); ++step) run_step(step);
      if (is_short && settings.steps_in_backward) follow_rate();  // for the next step, before its backward
    };
    if (!settings.joins) return train();
    ddp.join(train, {.after_step = [&] {
               follow_rate();
               if (!settings.steps_in_backward) optimizer->step();
             }});
  }

  // Differs if a bit of a weight differs.
  std::string bits() const { return hash_of(net.named_parameters()); }

  // Sets the loss scaler for options that read gradients.
  DistributedDataParallelOptions options_with(optim::LossScaler& loss_scaler) const {
    DistributedDataParallelOptions options = settings.options;
    const bool looks = options.max_grad_norm > 0 || options.on_nonfinite_gradient != OnNonfiniteGradient::kIgnore;
    if (settings.scales && looks) options.loss_scaler = &loss_scaler;
    return options;
  }

  ZeroSettings settings;
  optim::LossScaler scaler{{.initial = 4}};
  ZeroNet net;
  DistributedDataParallel ddp;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<ZeroRedundancyOptimizer> zero;
};

}  // namespace lockstep::testing
