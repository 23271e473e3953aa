// One model cut into stages, one on each device; micro-batches pass through the stages one after the other. Others call
// this pipeline parallel.
//
//     device 0: layers 0..2, their optimizer     device 1: layers 3..5, their optimizer      a thread each
//     forward micro-batch 0  -- activations -->
//     forward micro-batch 1  -- activations -->  forward, loss, backward of 0
//     backward of 0          <-- gradients ----  forward, loss, backward of 1
//     backward of 1          <-- gradients ----
//     optimizer                                  optimizer
//
// Each stage follows the plan of pipeline_plan.h: one forward, one backward. Traffic: over each boundary between
// two stages the activations of all samples one way, and their gradients back; no weights. While the pipeline fills and
// drains, devices wait: for (p - 1) / (m + p - 1) of a step of p stages and m micro-batches, if all take the same time.
// Gradients add up over the micro-batches, so that the weights are those of one device except for the rounding of sums;
// statistics of batch normalisation are computed for each micro-batch. The stages' optimizers act as one: a checkpoint
// has the state of all, and one bad gradient under loss scaling skips the step of all.
#include <chrono>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/optim/team.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_parallel/model_parallel_ranks.h"
#include "src/train/strategies/model_parallel/pipeline_plan.h"
#include "src/train/strategies/model_parallel/pipeline_stage.h"
#include "src/autograd/engine/device_threads.h"

namespace lockstep::train {

namespace {

class ModelParallel : public Strategy, public PipelineStages {
 public:
  ModelParallel(Training training, const StrategyOptions& options)
      : training_(std::move(training)),
        devices_(options.devices),
        pipeline_(count()),
        traffic_(devices_),
        threads_(count()) {
    for (std::size_t i = 0; i < devices_.size(); ++i) check_kernels(*devices_[i], i);
    check_loss(training_.loss);
    micro_batches_ = micro_batches_of(options, devices_.size());
    model_ = training_.model();
    if (!model_) throw InvalidArgument("strategy: Training::model() returned no module");
    check_built_in_scope(*model_);
    auto cut = cut_into_stages(*model_, devices_.size(), options.stage_layers);
    for (std::size_t i = 0; i < cut.size(); ++i)
      stages_.push_back(std::make_unique<PipelineStage>(training_, *model_, std::move(cut[i]), *devices_[i],
                                                        static_cast<int>(i), count(), micro_batches_));
    staged_ = std::make_unique<StagedModel>(*model_, cut_into_stages(*model_, devices_.size(), options.stage_layers),
                                            devices_);
    if (optimizers().empty()) throw InvalidArgument("strategy: the model has no parameter that requires a gradient");
    std::vector<optim::Optimizer*> by_stage;
    for (const auto& stage : stages_) by_stage.push_back(stage->optimizer());
    team_.emplace(kModelParallel, optim::Team::Kind::kStages, by_stage);
    bubble_ = {count(), micro_batches_, pipeline_bubble(count(), micro_batches_),
               std::vector<double>(devices_.size(), 0)};
    sent_.assign(devices_.size(), {0, 0});
  }

  const char* name() const override { return kModelParallel; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    check_micro_batches(inputs, targets, micro_batches_);
    pipeline_.begin();
    const StepSamples samples{inputs, targets, random_state(), sample_numbers()};
    const auto begin = std::chrono::steady_clock::now();
    threads_.run([&](int stage) { run_stage(stage, samples); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    pipeline_.rethrow();
    set_random_state(stages_.back()->random_after());
    for (std::size_t i = 0; i < stages_.size(); ++i) bubble_.idle[i] = 1 - busy_[i] / seconds;
    count_traffic(inputs, targets);
    team_->step([this](const auto& work) { threads_.run(work); });
    float total = stages_.back()->loss();
    for (const auto& stage : stages_) total += stage->added();
    return total;
  }

  nn::Module& model() override { return *staged_; }
  optim::Optimizer& optimizer() override { return *optimizers().front(); }
  std::vector<optim::Optimizer*> optimizers() override {
    std::vector<optim::Optimizer*> all;
    for (const auto& stage : stages_)
      if (stage->optimizer() != nullptr) all.push_back(stage->optimizer());
    return all;
  }
  void set_lr(float lr) override { team_->set_lr(lr); }
  std::vector<NamedLoss> step_losses() const override {
    std::vector<NamedLoss> all;
    float total = 0;
    for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage)  // "loss" is the last stage's
      for (const NamedLoss& loss : (*stage)->losses()) {
        if (loss.name == "total_loss") continue;
        all.push_back(loss);
        total += loss.value;
      }
    if (!all.empty()) all.push_back({"total_loss", total});
    return all;
  }
  std::vector<DeviceTraffic> traffic() const override { return traffic_.all(); }
  PipelineBubble bubble() const override { return bubble_; }

 private:
  int count() const { return static_cast<int>(devices_.size()); }

  // A stage that fails stops the others, because they wait for it.
  void run_stage(int number, const StepSamples& samples) {
    PipelineStage& stage = *stages_[static_cast<std::size_t>(number)];
    const auto begin = std::chrono::steady_clock::now();
    try {
      stage.run(samples, pipeline_.links(number));
    } catch (const StageStopped&) {
    } catch (...) {
      pipeline_.fail(std::current_exception());
    }
    busy_[static_cast<std::size_t>(number)] = std::chrono::steady_clock::now() - begin - stage.waited();
  }

  void count_traffic(const Tensor& inputs, const Tensor& targets) {
    traffic_.add(inputs.device(), *devices_.front(), inputs.bytes());
    traffic_.add(targets.device(), *devices_.back(), targets.bytes());
    for (int i = 0; i + 1 < count(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      Device &before = *devices_[at], &after = *devices_[at + 1];
      const std::uint64_t on = pipeline_.sent(i, i + 1), back = pipeline_.sent(i + 1, i);
      traffic_.add(before, after, on - std::exchange(sent_[at].first, on));
      traffic_.add(after, before, back - std::exchange(sent_[at].second, back));
    }
  }

  Training training_;
  std::vector<Device*> devices_;
  std::unique_ptr<nn::Module> model_;    // its layers lie on the devices of their stages
  std::unique_ptr<StagedModel> staged_;  // the same, with copies between devices
  std::vector<std::unique_ptr<PipelineStage>> stages_;
  std::optional<optim::Team> team_;  // of the stages' optimizers
  int micro_batches_ = 1;
  LocalPipeline pipeline_;
  std::vector<std::chrono::duration<double>> busy_ =
      std::vector<std::chrono::duration<double>>(devices_.size());  // of the last step
  std::vector<std::pair<std::uint64_t, std::uint64_t>>
      sent_;  // by boundary, on and back: bytes that traffic_ has counted
  PipelineBubble bubble_;
  TrafficCount traffic_;
  DeviceThreads threads_;
};

}  // namespace

std::unique_ptr<Strategy> make_model_parallel(Training training, const StrategyOptions& options) {
  if (options.group) return make_model_parallel_ranks(std::move(training), options);
  return std::make_unique<ModelParallel>(std::move(training), options);
}

}  // namespace lockstep::train
