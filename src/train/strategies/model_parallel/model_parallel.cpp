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
// A stage whose layers include nn::Branches has up to a device for each branch. The branches of a micro-batch compute
// at the same time, forward and backward:
//
//     device 0: stem, left, head, their optimizer     device 1: right, its optimizer
//     stem         -- activations of the stem -->
//     left                                            right
//     joins them   <-- activations of right -----
//     head, loss, backward of the head
//                  -- gradient of right's ------>
//     backward of left                                backward of right
//     backward of the stem  <-- gradient --------
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
#include "src/autograd/engine/device_threads.h"
#include "src/optim/team.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_parallel/model_parallel_ranks.h"
#include "src/train/strategies/model_parallel/pipeline_plan.h"
#include "src/train/strategies/model_parallel/pipeline_stage.h"

namespace lockstep::train {

namespace {

class ModelParallel : public Strategy, public PipelineStages {
 public:
  ModelParallel(Training training, const StrategyOptions& options)
      : training_(std::move(training)), devices_(options.devices), traffic_(devices_) {
    for (std::size_t i = 0; i < devices_.size(); ++i) check_kernels(*devices_[i], i);
    check_loss(training_.loss);
    model_ = training_.model();
    if (!model_) throw InvalidArgument("strategy: Training::model() returned no module");
    check_built_in_scope(*model_);
    const std::vector<StagePlan> plans = plan_stages(*model_, devices_, options.stage_layers);
    micro_batches_ = micro_batches_of(options, plans.size());
    std::vector<std::vector<nn::Module*>> layers;
    std::vector<Device*> homes;
    for (const StagePlan& plan : plans) {
      stages_.push_back(std::make_unique<PipelineStage>(training_, *model_, plan, static_cast<int>(stages_.size()),
                                                        static_cast<int>(plans.size()), micro_batches_));
      layers.push_back(plan.layers);
      homes.push_back(plan.devices.front());
    }
    pipeline_.emplace(count());
    threads_.emplace(count());
    staged_ = std::make_unique<StagedModel>(*model_, std::move(layers), std::move(homes));
    if (optimizers().empty()) throw InvalidArgument("strategy: the model has no parameter that requires a gradient");
    std::vector<optim::Optimizer*> by_device;
    for (const auto& stage : stages_)
      for (optim::Optimizer* optimizer : stage->optimizers()) by_device.push_back(optimizer);
    team_.emplace(kModelParallel, optim::Team::Kind::kStages, by_device);
    bubble_ = {count(), micro_batches_, pipeline_bubble(count(), micro_batches_),
               std::vector<double>(devices_.size(), 0)};
    busy_.resize(stages_.size());
    sent_.assign(stages_.size(), {0, 0});
  }

  const char* name() const override { return kModelParallel; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    check_micro_batches(inputs, targets, micro_batches_);
    pipeline_->begin();
    const StepSamples samples{inputs, targets, random_state(), sample_numbers()};
    const auto begin = std::chrono::steady_clock::now();
    threads_->run([&](int stage) { run_stage(stage, samples); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    pipeline_->rethrow();
    set_random_state(stages_.back()->random_after());
    std::size_t device = 0;
    for (std::size_t i = 0; i < stages_.size(); ++i)
      for (std::size_t each = 0; each < stages_[i]->devices().size(); ++each)
        bubble_.idle[device++] = 1 - busy_[i] / seconds;
    count_traffic(inputs, targets);
    team_->step([this](const auto& work) { on_all_devices(work); });
    float total = stages_.back()->loss();
    for (const auto& stage : stages_) total += stage->added();
    return total;
  }

  nn::Module& model() override { return *staged_; }
  optim::Optimizer& optimizer() override { return *optimizers().front(); }
  std::vector<optim::Optimizer*> optimizers() override {
    std::vector<optim::Optimizer*> all;
    for (const auto& stage : stages_)
      for (optim::Optimizer* optimizer : stage->optimizers())
        if (optimizer != nullptr) all.push_back(optimizer);
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
  int count() const { return static_cast<int>(stages_.size()); }

  // Calls work(device) for all devices, each stage's on the thread of the stage.
  void on_all_devices(const std::function<void(int device)>& work) {
    threads_->run([&](int number) {
      int device = 0;
      for (int stage = 0; stage < number; ++stage) device += devices_of(stage);
      for (int each = 0; each < devices_of(number); ++each) work(device + each);
    });
  }
  int devices_of(int stage) const {
    return static_cast<int>(stages_[static_cast<std::size_t>(stage)]->devices().size());
  }

  // A stage that fails stops the others, because they wait for it.
  void run_stage(int number, const StepSamples& samples) {
    PipelineStage& stage = *stages_[static_cast<std::size_t>(number)];
    const auto begin = std::chrono::steady_clock::now();
    try {
      stage.run(samples, pipeline_->links(number));
    } catch (const StageStopped&) {
    } catch (...) {
      pipeline_->fail(std::current_exception());
    }
    busy_[static_cast<std::size_t>(number)] = std::chrono::steady_clock::now() - begin - stage.waited();
  }

  void count_traffic(const Tensor& inputs, const Tensor& targets) {
    traffic_.add(inputs.device(), *devices_.front(), inputs.bytes());
    traffic_.add(targets.device(), *stages_.back()->devices().front(), targets.bytes());
    for (const auto& stage : stages_)
      for (std::size_t i = 1; i < stage->devices().size(); ++i) {
        Device &home = *stage->devices().front(), &device = *stage->devices()[i];
        traffic_.add(home, device, stage->branch_traffic()[i].received);
        traffic_.add(device, home, stage->branch_traffic()[i].sent);
      }
    for (int i = 0; i + 1 < count(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      Device &before = *stages_[at]->devices().front(), &after = *stages_[at + 1]->devices().front();
      const std::uint64_t on = pipeline_->sent(i, i + 1), back = pipeline_->sent(i + 1, i);
      traffic_.add(before, after, on - std::exchange(sent_[at].first, on));
      traffic_.add(after, before, back - std::exchange(sent_[at].second, back));
    }
  }

  Training training_;
  std::vector<Device*> devices_;
  std::unique_ptr<nn::Module> model_;    // its layers lie on the devices of their stages
  std::unique_ptr<StagedModel> staged_;  // the same, with copies between devices
  std::vector<std::unique_ptr<PipelineStage>> stages_;
  std::optional<optim::Team> team_;  // of the optimizers of all devices
  int micro_batches_ = 1;
  std::optional<LocalPipeline> pipeline_;
  std::vector<std::chrono::duration<double>> busy_;  // by stage, of the last step
  std::vector<std::pair<std::uint64_t, std::uint64_t>>
      sent_;  // by boundary, on and back: bytes that traffic_ has counted
  PipelineBubble bubble_;
  TrafficCount traffic_;
  std::optional<DeviceThreads> threads_;  // by stage
};

}  // namespace

std::unique_ptr<Strategy> make_model_parallel(Training training, const StrategyOptions& options) {
  if (options.group) return make_model_parallel_ranks(std::move(training), options);
  return std::make_unique<ModelParallel>(std::move(training), options);
}

}  // namespace lockstep::train
