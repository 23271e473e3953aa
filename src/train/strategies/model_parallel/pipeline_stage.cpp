#include "src/train/strategies/model_parallel/pipeline_stage.h"

#include <algorithm>
#include <numeric>
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

std::vector<std::size_t> sizes_of_stages(const std::vector<nn::Module*>& layers, std::size_t stages,
                                         const std::vector<int>& asked) {
  if (stages > layers.size())
    throw InvalidArgument(
        "{}: {} stages, one for each device, but only {} layers: every stage needs a layer: use fewer devices, or "
        "ranks",
        kModelParallel, stages, layers.size());
  if (asked.empty()) {
    std::vector<std::uint64_t> bytes;
    for (const nn::Module* layer : layers) {
      bytes.push_back(0);
      for (const Tensor& parameter : layer->parameters()) bytes.back() += parameter.bytes();
    }
    return split_layers(bytes, stages);
  }
  const bool all_positive = std::all_of(asked.begin(), asked.end(), [](int size) { return size > 0; });
  if (asked.size() != stages || !all_positive ||
      std::accumulate(asked.begin(), asked.end(), 0) != static_cast<int>(layers.size()))
    throw InvalidArgument(
        "{}: .stage_layers has {} numbers with sum {}; expected a positive number for each of {} stages, with sum {}, "
        "the layers",
        kModelParallel, asked.size(), std::accumulate(asked.begin(), asked.end(), 0), stages, layers.size());
  return {asked.begin(), asked.end()};
}

void check_not_shared(const std::vector<std::vector<nn::Module*>>& stages) {
  std::vector<std::pair<std::size_t, NamedTensor>> seen;
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (const nn::Module* layer : stages[stage])
      for (const NamedTensor& parameter : layer->named_parameters()) {
        for (const auto& [other, known] : seen)
          if (other != stage && known.tensor.is_same(parameter.tensor))
            throw InvalidArgument(
                "{}: stages {} and {} share the parameter '{}' of shape {}: choose .stage_layers so that one stage has "
                "both uses",
                kModelParallel, other, stage, parameter.name, parameter.tensor.shape().text());
        seen.emplace_back(stage, parameter);
      }
}

// forward() sets the numbers of each micro-batch.
struct KeptSampleNumbers {
  const SampleNumbers numbers = sample_numbers();
  ~KeptSampleNumbers() { set_sample_numbers(numbers); }
};

}  // namespace

std::vector<std::vector<nn::Module*>> cut_into_stages(nn::Module& model, std::size_t stages,
                                                      const std::vector<int>& stage_layers) {
  if (dynamic_cast<nn::Sequential*>(&model) == nullptr)
    throw InvalidArgument(
        "{}: the model is a {}: stages are runs of layers of an nn::Sequential; make it one, or move its parts to "
        "devices by hand, with to_device() between them",
        kModelParallel, model.kind());
  if (!model.own_parameters().empty() || !model.own_buffers().empty())
    throw InvalidArgument("{}: the Sequential has tensors outside its layers, which belong to no stage",
                          kModelParallel);
  std::vector<nn::Module*> layers;
  for (const auto& child : model.children()) layers.push_back(child.second);
  std::vector<std::vector<nn::Module*>> cut;
  auto next = layers.begin();
  for (const std::size_t size : sizes_of_stages(layers, stages, stage_layers)) {
    cut.emplace_back(next, next + static_cast<std::ptrdiff_t>(size));
    next += static_cast<std::ptrdiff_t>(size);
  }
  check_not_shared(cut);
  return cut;
}

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

PipelineStage::PipelineStage(const Training& training, const nn::Module& model, std::vector<nn::Module*> layers,
                             Device& device, int stage, int stages, int micro_batches)
    : training_(training),
      layers_(std::move(layers)),
      device_(device),
      stage_(stage),
      stages_(stages),
      micro_batches_(micro_batches) {
  for (nn::Module* layer : layers_) {
    layer->to(device);
    const auto child = std::find_if(model.children().begin(), model.children().end(),
                                    [layer](const auto& each) { return each.second == layer; });
    LOCKSTEP_CHECK(child != model.children().end(), "{}: a layer of stage {} is not in the model", kModelParallel,
                   stage);
    for (NamedTensor& parameter : nn::trainable_parameters(*layer))
      trained_.push_back({child->first + "." + parameter.name, std::move(parameter.tensor)});
  }
  if (!trained_.empty()) optimizer_ = make_optimizer(kModelParallel, training_, trained_);
}

std::vector<NamedTensor> PipelineStage::state() const {
  std::vector<NamedTensor> all;
  for (const nn::Module* layer : layers_)
    for (NamedTensor& tensor : layer->state_dict()) all.push_back(std::move(tensor));
  return all;
}

void PipelineStage::run(const StepSamples& samples, StageLinks& links) {
  const KeptSampleNumbers kept;
  under_way_.clear();
  losses_.begin(micro_batches_);
  waited_ = {};
  for (const NamedTensor& parameter : trained_) clear_grad(parameter.tensor);
  for (const PipelineOp& op : one_forward_one_backward(stage_, stages_, micro_batches_))
    op.forward ? forward(op.micro_batch, samples, links) : backward(op.micro_batch, links);
  losses_.end();
  device_.default_stream().synchronize();
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
    output = loss_of(training_.loss, *layers_.back(), output,
                     rows_of_part(kModelParallel, samples.targets, micro_batch, micro_batches_, device_));
    random_after_ = random_state();
  } else {
    links.send_activation({detach(output), random_state(), requires_grad(output)});
  }
  losses_.count(is_last() ? output : Tensor(), added);
  under_way_[micro_batch] = {input.values, output, scaled_sum(added, loss_scaler_of(optimizer_.get()))};
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
  for (nn::Module* layer : layers_) values = (*layer)(values);
  if (values.size() != 1)
    throw InvalidArgument(
        "{}: stage {} returned {} tensors; expected one for the next stage, or the loss: choose .stage_layers that end "
        "after a layer with one output",
        kModelParallel, stage_, values.size());
  return values.front();
}

}  // namespace lockstep::train
