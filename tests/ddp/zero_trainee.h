// A small model that trains by ddp, plainly or with ZeroRedundancyOptimizer: two groups of parameters, several buckets,
// sizes that no number of ranks divides.
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
#include "lockstep/optim/adagrad.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/nadam.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
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

// As a user may write one: elementwise, with a loop of its own, which reads `grad` and writes `weight` and nothing
// else.
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

inline const std::map<std::string, MakeOptimizer>& zero_optimizers() {
  using Names = std::vector<NamedTensor>;
  static const std::map<std::string, MakeOptimizer> all = {
      {"sgd",
       [](Names p, auto* s) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions{
                    .lr = 0.1F, .momentum = 0.9F, .nesterov = true, .weight_decay = 0.01F, .loss_scaler = s});
       }},
      {"loop_sgd", [](Names p, auto* s) { return std::make_unique<LoopSgd>(p, s); }},
      {"plain_sgd",
       [](Names p, auto* s) {
         return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1F, .loss_scaler = s});
       }},
      {"adam",
       [](Names p, auto* s) {
         return std::make_unique<optim::Adam>(p,
                                              optim::AdamOptions{.lr = 0.01F, .weight_decay = 0.1F, .loss_scaler = s});
       }},
      {"adamw",
       [](Names p, auto* s) {
         return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.lr = 0.01F, .loss_scaler = s});
       }},
      {"nadam",
       [](Names p, auto* s) {
         return std::make_unique<optim::Nadam>(p, optim::NadamOptions{.lr = 0.01F, .loss_scaler = s});
       }},
      {"rmsprop",
       [](Names p, auto* s) {
         return std::make_unique<optim::RMSprop>(
             p, optim::RMSpropOptions{.lr = 0.01F, .momentum = 0.9F, .centered = true, .loss_scaler = s});
       }},
      {"adagrad",
       [](Names p, auto* s) {
         return std::make_unique<optim::Adagrad>(p,
                                                 optim::AdagradOptions{.initial_accumulator = 0.5F, .loss_scaler = s});
       }},
  };
  return all;
}

struct ZeroSettings {
  DistributedDataParallelOptions options = {.bucket_cap_mb = {in_mib(64), in_mib(512)}};
  bool leaves_some = false, gathers = false, weighs = false, joins = false, scales = false, steps_in_backward = false,
       begins_epochs = false;
  float bad_value = 0;  // not 0: the last rank's gradient of "b.bias" is this much too large in the fourth step
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

  // Rank r's samples differ from other ranks'. With loss scaling rank 1's gradient of "b.bias" is
  // infinite in the fourth step: no other rank than the one with that slice sees it.
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

  // In join() the last rank has two steps less.
  void run(int steps) {
    const bool is_short = settings.joins && ddp.group().rank() == ddp.group().world_size() - 1;
    const auto follow_rate = [this] { optimizer->set_lr(optimizer->lr() * 0.97F); };
    const auto train = [&] {
      if (settings.begins_epochs) ddp.begin_epoch(steps);
      for (int step = 0; step < steps - (is_short ? 2 : 0); ++step) run_step(step);
      if (is_short && settings.steps_in_backward) follow_rate();  // for the step that follows, before its backward
    };
    if (!settings.joins) return train();
    ddp.join(train, {.after_step = [&] {
               follow_rate();
               if (!settings.steps_in_backward) optimizer->step();
             }});
  }

  // Differs where a bit of a weight does.
  std::string bits() const { return hash_of(net.named_parameters()); }

  // With loss scaling, for what looks at gradients.
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
