#include "src/train/strategies/model_parallel/pipeline_stage.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/transfer.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/nn/module/trainable.h"
#include "src/train/strategies/model_parallel/pipeline_plan.h"

namespace lockstep::train {

namespace {

// forward() sets the numbers of each micro-batch.
struct KeptSampleNumbers {
  const SampleNumbers numbers = sample_numbers();
  ~KeptSampleNumbers() { set_sample_numbers(numbers); }
};

}  // namespace

int micro_batches_of(const StrategyOptions& options, std::size_t stages) {
  if (options.micro_batches < 0)
    throw InvalidArgument("{}: .micro_batches is {}: 0 means as many as stages", kModelParallel, options.micro_batches);
  return options.micro_batches == 0 ? static_cast<int>(stages) : options.micro_batches;
}

void check_micro_batches(const Tensor& inputs, const Tensor& targets, int micro_batches) {
  check_batch(kModelParallel, inputs, targets, 1);
  check_no_autocast(kModelParallel);
  if (inputs.shape()[0] % micro_batches != 0)
    throw InvalidArgument(
        "{}: {} samples per step cannot be split evenly into {} micro-batches: choose .micro_batches that divide them",
        kModelParallel, inputs.shape()[0], micro_batches);
}

void check_kernels(const Device& device, std::size_t stage) {
  const KernelTable& kernels = device.kernels();
  const char* missing = nullptr;
#define LOCKSTEP_OPERATOR(name, ...) \
  if (missing == nullptr && kernels.name == nullptr) missing = #name;
#include "lockstep/core/operators.def"
  if (missing != nullptr)
    throw InvalidArgument(
        "{}: stage {}: device {} has no kernel for the operator '{}': give another device in .devices", kModelParallel,
        stage, device.name(), missing);
}

void check_loss(const LossFunction& loss) {
  if (loss.sees_model())
    throw InvalidArgument(
        "{}: the loss is a function of the model, but each device has some of the layers: let the layers add their "
        "penalties by nn::add_loss() (nn/added_losses.h), which each stage adds to the loss, or use another strategy",
        kModelParallel);
}

StagedModel::StagedModel(const nn::Module& model, std::vector<std::vector<nn::Module*>> stages,
                         std::vector<Device*> devices)
    : stages_(std::move(stages)), devices_(std::move(devices)) {
  for (const auto& [name, layer] : model.children()) add(name, *layer);
  train(model.is_training());
}

Tensors StagedModel::forward_all(const Tensors& inputs) {
  Tensors values = inputs;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    for (Tensor& value : values) value = to_device(value, *devices_[stage]);
    for (nn::Module* layer : stages_[stage]) values = (*layer)(values);
  }
  return values;
}

PipelineStage::PipelineStage(const Training& training, const nn::Module& model, StagePlan plan, int stage, int stages,
                             int micro_batches)
    : training_(training),
      plan_(std::move(plan)),
      device_(*plan_.devices.front()),
      stage_(stage),
      stages_(stages),
      micro_batches_(micro_batches) {
  place_layers(plan_.layers, plan_.devices);
  for (nn::Module* layer : plan_.layers) {
    const auto child = std::find_if(model.children().begin(), model.children().end(),
                                    [layer](const auto& each) { return each.second == layer; });
    LOCKSTEP_CHECK(child != model.children().end(), "{}: a layer of stage {} is not in the model", kModelParallel,
                   stage);
    for (NamedTensor& parameter : nn::trainable_parameters(*layer))
      trained_.push_back({child->first + "." + parameter.name, std::move(parameter.tensor)});
  }
  for (const Device* device : plan_.devices) {
    std::vector<NamedTensor> here;
    for (const NamedTensor& parameter : trained_)
      if (&parameter.tensor.device() == device) here.push_back(parameter);
    optimizers_.push_back(here.empty() ? nullptr : make_optimizer(kModelParallel, training_, here));
  }
}

std::vector<optim::Optimizer*> PipelineStage::optimizers() const {
  std::vector<optim::Optimizer*> all;
  for (const auto& optimizer : optimizers_) all.push_back(optimizer.get());
  return all;
}

std::vector<nn::BranchTraffic> PipelineStage::traffic_of_branches() const {
  std::vector<nn::BranchTraffic> all(plan_.devices.size());
  for (nn::Module* layer : plan_.layers)
    for (const nn::Branches* branches : branches_in(*layer))
      for (std::size_t b = 0; b < branches->size(); ++b) {
        all[b % all.size()].sent += branches->traffic(b).sent;
        all[b % all.size()].received += branches->traffic(b).received;
      }
  return all;
}

optim::LossScaler* PipelineStage::scaler() const {
  for (const auto& optimizer : optimizers_)
    if (optimizer) return loss_scaler_of(optimizer.get());
  return nullptr;
}

std::vector<NamedTensor> PipelineStage::state() const {
  std::vector<NamedTensor> all;
  for (const nn::Module* layer : plan_.layers)
    for (NamedTensor& tensor : layer->state_dict()) all.push_back(std::move(tensor));
  return all;
}

void PipelineStage::run(const StepSamples& samples, StageLinks& links) {
  const KeptSampleNumbers kept;
  under_way_.clear();
  losses_.begin(micro_batches_);
  waited_ = {};
  for (const NamedTensor& parameter : trained_) clear_grad(parameter.tensor);
  const std::vector<nn::BranchTraffic> before = traffic_of_branches();
  for (const PipelineOp& op : one_forward_one_backward(stage_, stages_, micro_batches_))
    op.forward ? forward(op.micro_batch, samples, links) : backward(op.micro_batch, links);
  losses_.end();
  for (Device* device : plan_.devices) device->default_stream().synchronize();
  branch_traffic_ = traffic_of_branches();
  for (std::size_t i = 0; i < before.size(); ++i) {
    branch_traffic_[i].sent -= before[i].sent;
    branch_traffic_[i].received -= before[i].received;
  }
}

void PipelineStage::forward(int micro_batch, const StepSamples& samples, StageLinks& links) {
  Activation input{{}, samples.random};
  if (stage_ == 0) {
    input.values = rows_of_part(kModelParallel, samples.inputs, micro_batch, micro_batches_, device_);
  } else {
    const auto begin = std::chrono::steady_clock::now();
    input = links.receive_activation(device_);
    waited_ += std::chrono::steady_clock::now() - begin;
    input.values = detach(input.values);
    if (input.wants_gradient) require_grad(input.values);
  }
  set_random_state(input.random);
  set_sample_numbers(numbers_of_part(samples.numbers, samples.inputs, micro_batch, micro_batches_));
  const nn::AddedLosses added;
  Tensor output = run_layers(input.values);
  if (is_last()) {
    output = loss_of(training_.loss, *plan_.layers.back(), output,
                     rows_of_part(kModelParallel, samples.targets, micro_batch, micro_batches_, device_));
    random_after_ = random_state();
  } else {
    links.send_activation({detach(output), random_state(), requires_grad(output)});
  }
  losses_.count(is_last() ? output : Tensor(), added);
  under_way_[micro_batch] = {input.values, output, scaled_sum(added, scaler())};
}

void PipelineStage::backward(int micro_batch, StageLinks& links) {
  const UnderWay kept = std::exchange(under_way_[micro_batch], {});
  under_way_.erase(micro_batch);
  const bool has_added = kept.added.defined() && requires_grad(kept.added);
  if (requires_grad(kept.output)) {
    Tensor gradient;
    if (is_last()) {  // the loss of a step is the mean of its micro-batches'
      gradient = Tensor::full(kept.output.shape(), 1 / static_cast<float>(micro_batches_), device_);
    } else {
      const auto begin = std::chrono::steady_clock::now();
      gradient = links.receive_gradient(device_);
      waited_ += std::chrono::steady_clock::now() - begin;
    }
    kept.output.backward({.gradient = gradient, .retain_graph = has_added});
  }
  if (has_added) kept.added.backward({.gradient = Tensor::full({}, 1 / static_cast<float>(micro_batches_), device_)});
  if (stage_ == 0 || !requires_grad(kept.input)) return;
  links.send_gradient(has_grad(kept.input) ? grad(kept.input)
                                           : Tensor::zeros(kept.input.shape(), kept.input.dtype(), device_));
}

Tensor PipelineStage::run_layers(const Tensor& input) const {
  Tensors values{input};
  for (nn::Module* layer : plan_.layers) values = (*layer)(values);
  if (values.size() != 1)
    throw InvalidArgument(
        "{}: stage {} returned {} tensors; expected one for the next stage, or the loss: choose .stage_layers that end "
        "after a layer with one output",
        kModelParallel, stage_, values.size());
  return values.front();
}

}  // namespace lockstep::train
