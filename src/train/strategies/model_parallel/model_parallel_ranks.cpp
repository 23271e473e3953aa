// The pipeline of model_parallel.cpp with a process for each stage.
//
//     rank 0: layers 0..2, their optimizer       rank 1: layers 3..5, their optimizer
//     forward micro-batch 0  -- activations -->
//     forward micro-batch 1  -- activations -->  forward, loss, backward of 0
//     backward of 0          <-- gradients ----  forward, loss, backward of 1
//     backward of 1          <-- gradients ----
//     optimizer              <== loss =========  optimizer
//
// All ranks build the entire model with rank 0's weights, and train the layers of their stage; the other layers are out
// of date until model() is called. Traffic: the same as within a process, by send and recv; the loss from the last
// rank to all; and in model() the weights of each stage to all.
#include "src/train/strategies/model_parallel/model_parallel_ranks.h"

#include <bit>
#include <chrono>
#include <optional>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/should_stop.h"
#include "lockstep/core/error.h"
#include "src/core/base/message_text.h"
#include "src/ddp/checks/replicas.h"
#include "src/train/strategies/model_parallel/pipeline_plan.h"
#include "src/train/strategies/model_parallel/pipeline_stage.h"
#include "src/train/strategies/model_parallel/stage_optimizers.h"

namespace lockstep::train {

namespace {

class ModelParallelRanks : public Strategy, public PipelineStages {
 public:
  ModelParallelRanks(Training training, const StrategyOptions& options)
      : training_(std::move(training)), group_(options.group), devices_({&group_->local_device()}), links_(group_) {
    const int rank = group_->rank(), ranks = group_->world_size();
    on_all_ranks(group_, [&] {
      check_kernels(*devices_.front(), static_cast<std::size_t>(rank));
      check_loss(training_.loss);
      micro_batches_ = micro_batches_of(options, static_cast<std::size_t>(ranks));
      model_ = training_.model();
      if (!model_) throw InvalidArgument("strategy: Training::model() returned no module");
      check_built_in_scope(*model_);
      cut_ = cut_into_stages(*model_, static_cast<std::size_t>(ranks), options.stage_layers);
    });
    std::vector<std::string> layers;
    for (const int count : options.stage_layers) layers.push_back(std::to_string(count));
    check_same_on_all_ranks(*group_, kModelParallel,
                            {fmt::format("micro_batches = {}", options.micro_batches),
                             fmt::format("stage_layers = {}", joined(layers, " "))},
                            "have different options");
    check_same_model(*group_, *model_, kModelParallel);
    model_->to(*devices_.front());
    replace_by_roots(*group_, model_->state_dict(), "initial weights");
    on_all_ranks(group_, [&] {  // making an optimizer may fail
      stage_ = std::make_unique<PipelineStage>(
          training_, *model_, StagePlan{cut_[static_cast<std::size_t>(rank)], devices_}, rank, ranks, micro_batches_);
    });
    optimizer_ = share_stages(*group_, own_optimizer(), untrained_, team_);
    bubble_ = {ranks, micro_batches_, pipeline_bubble(ranks, micro_batches_), {0}};
  }

  const char* name() const override { return kModelParallel; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    const auto begin = std::chrono::steady_clock::now();
    run_stage({inputs, targets, random_state(), sample_numbers()});
    team_->begin();
    if (is_scaled()) team_->find_bad(0);
    const StepEnd end = end_of_step();
    const std::chrono::duration<double> busy = worked_, seconds = std::chrono::steady_clock::now() - begin;
    bubble_.idle = {1 - busy / seconds};
    team_->decide(end.is_bad);
    team_->update(0);
    team_->end();
    is_gathered_ = false;
    return end.loss;
  }

  bool should_stop() override { return lockstep::should_stop(group_); }

  nn::Module& model() override {
    for (std::size_t rank = 0; rank < cut_.size() && !is_gathered_; ++rank)
      for (const nn::Module* layer : cut_[rank])
        for (const NamedTensor& each : layer->state_dict()) broadcast(each.tensor, static_cast<int>(rank));
    is_gathered_ = true;
    return *model_;
  }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  std::vector<optim::Optimizer*> optimizers() override {
    return own_optimizer() == nullptr ? std::vector<optim::Optimizer*>() : std::vector{own_optimizer()};
  }
  void set_lr(float lr) override { team_->set_lr(lr); }
  std::vector<NamedLoss> step_losses() const override { return stage_->losses(); }
  std::vector<DeviceTraffic> traffic() const override { return {{devices_.front(), links_.sent(), links_.received()}}; }
  PipelineBubble bubble() const override { return bubble_; }

 private:
  // An error of this rank alone must end the others, because they wait for this rank.
  void run_stage(const StepSamples& samples) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      check_micro_batches(samples.inputs, samples.targets, micro_batches_);
      stage_->run(samples, links_);
      worked_ = std::chrono::steady_clock::now() - begin - stage_->waited();
      links_.finish_sends();
    } catch (...) {
      group_->abort(fmt::format("{}: stage {} (rank {}) failed: {}", kModelParallel, group_->rank(), group_->rank(),
                                exception_text(std::current_exception())));
      throw;
    }
  }

  struct StepEnd {
    float loss;
    bool is_bad;  // under loss scaling: a gradient of some stage is infinite or NaN
  };
  optim::Optimizer* own_optimizer() const { return stage_->optimizers().front(); }
  bool is_scaled() const { return team_->loss_scaler() != nullptr; }

  // One call sends all ranks the last rank's loss, the position in the random streams after the draws of all stages,
  // the losses that each stage's modules added, and under loss scaling the number of ranks whose gradients are bad.
  // Only one rank sets each of the other values, so that a sum over the ranks has its bits.
  StepEnd end_of_step() {
    std::vector<std::uint64_t> values(4 + cut_.size(), 0);
    if (stage_->is_last()) {
      const RandomState after = stage_->random_after();
      values = {after.seed, after.next_stream, after.next_dropout, 0};
      values.resize(4 + cut_.size(), 0);
    }
    values[3] = is_scaled() && team_->found_bad() ? 1 : 0;
    values[4 + static_cast<std::size_t>(group_->rank())] =
        std::bit_cast<std::uint32_t>(stage_->is_last() ? stage_->loss() + stage_->added() : stage_->added());
    group_->all_reduce(values.data(), values.size(), DType::kInt64, ReduceOp::kSum, {.purpose = {"loss"}});
    set_random_state({values[0], values[1], values[2]});
    float loss = 0;
    for (std::size_t i = values.size(); i > 4; --i)
      loss += std::bit_cast<float>(static_cast<std::uint32_t>(values[i - 1]));
    return {loss, values[3] != 0};
  }

  void broadcast(const Tensor& tensor, int root) {
    const Tensor host = tensor.to(cpu_device());
    group_->broadcast(host.buffer().data(), static_cast<std::size_t>(host.count()), host.dtype(), root,
                      {.purpose = {"stage's weights"}});
    if (!host.is_same(tensor)) tensor.copy_from(host);
    tensor.mark_changed();
  }

  Training training_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<Device*> devices_;
  RankLinks links_;
  std::unique_ptr<nn::Module> model_;
  std::vector<std::vector<nn::Module*>> cut_;
  std::unique_ptr<PipelineStage> stage_;
  std::unique_ptr<optim::Optimizer> untrained_;  // an optimizer without parameters, if the stage trains nothing
  std::optional<optim::Team> team_;              // this rank's optimizer; knows the state of the others
  optim::Optimizer* optimizer_ = nullptr;        // the stage's, or untrained_
  int micro_batches_ = 1;
  bool is_gathered_ = true;  // the same on all ranks
  std::chrono::duration<double> worked_{0};
  PipelineBubble bubble_;
};

}  // namespace

std::unique_ptr<Strategy> make_model_parallel_ranks(Training training, const StrategyOptions& options) {
  return std::make_unique<ModelParallelRanks>(std::move(training), options);
}

}  // namespace lockstep::train
