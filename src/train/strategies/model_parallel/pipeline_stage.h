// A stage of a pipeline: some layers on one device, or with branches on several, and the micro-batches that pass
// through them.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "lockstep/nn/layers.h"
#include "lockstep/train/strategy.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/model_parallel/micro_batch_losses.h"
#include "src/train/strategies/model_parallel/pipeline_links.h"
#include "src/train/strategies/model_parallel/stage_devices.h"

namespace lockstep::train {

inline constexpr const char* kModelParallel = "model_parallel";

// The model that users evaluate and save: all layers with their names; forward() passes through all stages.
class StagedModel : public nn::Module {
 public:
  // `model` has the layers of all stages and outlives this.
  StagedModel(const nn::Module& model, std::vector<std::vector<nn::Module*>> stages, std::vector<Device*> devices);
  Tensors forward_all(const Tensors& inputs) override;
  std::string kind() const override { return "Sequential"; }

 private:
  const std::vector<std::vector<nn::Module*>> stages_;
  const std::vector<Device*> devices_;
};

// .micro_batches, or as many as stages. Throws InvalidArgument below 0.
int micro_batches_of(const StrategyOptions& options, std::size_t stages);

// Throws InvalidArgument unless the micro-batches divide the samples.
void check_micro_batches(const Tensor& inputs, const Tensor& targets, int micro_batches);

// Throws InvalidArgument, with stage, device and operator, if the device has no kernel for an operator.
void check_kernels(const Device& device, std::size_t stage);

// Throws InvalidArgument if the loss is a function of the model, which no device has as a whole.
void check_loss(const LossFunction& loss);

// A step's samples, of the whole batch.
struct StepSamples {
  const Tensor& inputs;
  const Tensor& targets;
  RandomState random;     // where the draws of the step begin
  SampleNumbers numbers;  // of the rows
};

// Used by one thread, always the same.
class PipelineStage {
 public:
  // Moves the layers, which belong to `model`, to the stage's devices (stage_devices.h). Makes an optimizer for each
  // device that trains something; it knows the parameters by their names in the model.
  PipelineStage(const Training& training, const nn::Module& model, StagePlan plan, int stage, int stages,
                int micro_batches);

  // Forward and backward of all micro-batches; gradients add up in the parameters. Throws what layers, loss and links
  // throw.
  void run(const StepSamples& samples, StageLinks& links);

  const std::vector<Device*>& devices() const { return plan_.devices; }
  bool is_last() const { return stage_ + 1 == stages_; }
  // By device; null where nothing is trained.
  std::vector<optim::Optimizer*> optimizers() const;
  // Bytes that the last run copied for branches: to each of devices() from the first one, and back.
  const std::vector<nn::BranchTraffic>& branch_traffic() const { return branch_traffic_; }
  // Parameters and buffers, with their names in the layers.
  std::vector<NamedTensor> state() const;
  float loss() const { return losses_.loss(); }    // on the last stage: the mean over the batch
  float added() const { return losses_.added(); }  // mean over the micro-batches of what the stage's modules added
  // Means over the micro-batches, by name.
  std::vector<NamedLoss> losses() const { return losses_.by_name(); }
  RandomState random_after() const { return random_after_; }  // on the last stage: where the next step's draws begin
  std::chrono::duration<double> waited() const { return waited_; }  // for neighbours, in the last run

 private:
  struct UnderWay {
    Tensor input, output;  // on the last stage the output is the loss
    Tensor added;          // sum of what the stage's modules added, undefined if nothing
  };
  void forward(int micro_batch, const StepSamples& samples, StageLinks& links);
  void backward(int micro_batch, StageLinks& links);
  Tensor run_layers(const Tensor& input) const;
  optim::LossScaler* scaler() const;
  std::vector<nn::BranchTraffic> traffic_of_branches() const;  // since the model was built

  const Training& training_;
  const StagePlan plan_;
  Device& device_;  // the first
  const int stage_, stages_, micro_batches_;
  std::vector<NamedTensor> trained_;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;  // by device
  std::vector<nn::BranchTraffic> branch_traffic_;              // by device
  std::map<int, UnderWay> under_way_;
  MicroBatchLosses losses_;
  RandomState random_after_;
  std::chrono::duration<double> waited_{0};
};

}  // namespace lockstep::train
