#include "bench/lib/step_trainer.h"

#include <algorithm>

#include "src/comm/testing/delay_backend.h"

namespace lockstep::bench {

StepTrainer::StepTrainer(const std::string& model, std::shared_ptr<ProcessGroup> group,
                         const StepTrainerOptions& options)
    : model_(make_model(model, group->rank())) {
  nn::Module& module = *model_.module;
  Device& device = options.device == nullptr ? cpu_device() : *options.device;
  module.to(device);
  x_ = model_.inputs.to(device);
  labels_ = model_.labels.to(device);
  for (const NamedTensor& parameter : module.named_parameters())  // registered before ddp's own hook, so it runs first
    hooks_.push_back(register_grad_hook(parameter.tensor, [this](const Tensor&) {
      if (first_ready_ == Clock::time_point{}) first_ready_ = Clock::now();
    }));
  ddp_ = std::make_unique<DistributedDataParallel>(module, std::move(group),
                                                   DistributedDataParallelOptions{.comm_hook = options.hook});
  if (AutoCast::active() == DType::kFloat16) scaler_.emplace();
  optimizer_ = make_optimizer(model, ddp_->parameters(), scaler_ ? &*scaler_ : nullptr, options.optimizer);
  if (options.zero) zero_.emplace(*ddp_, *optimizer_);
  if (options.average_period > 0)
    averager_.emplace(*ddp_, PeriodicModelAveragerOptions{.period = options.average_period});
}

StepTrainer::Step StepTrainer::step() {
  const auto ms = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
  };
  first_ready_ = {};
  note_costs();
  const auto start = Clock::now();
  optimizer_->zero_grad();
  const Tensor loss = nn::cross_entropy((*ddp_)(x_), labels_);
  const auto forward_end = Clock::now();
  scaled(loss).backward();
  const auto backward_end = Clock::now();
  update();
  const auto end = Clock::now();
  double waited = 0;
  for (const BucketTimes& bucket : times()) waited += 1e3 * bucket.waited;
  Step step{ms(start, forward_end), ms(forward_end, backward_end) - waited, ms(backward_end, end), ms(start, end), 0};
  step.bound = step.forward + std::max(step.backward, wire_ms(ms(forward_end, first_ready_))) + step.update;
  return step;
}

void StepTrainer::run_step() {
  if (graph_)
    (*graph_)();
  else
    bare_step();
}

void StepTrainer::use_graph() {
  graph_.emplace(ddp_->capture([this] { return bare_step(); }));
}

StepTrainer::Outcome StepTrainer::outcome() {
  const NoGrad no_grad;
  const Tensor logits = (*model_.module)(x_);
  return {nn::cross_entropy(logits, labels_).item(), logits.dtype()};
}

std::int64_t StepTrainer::parameters() const {
  std::int64_t count = 0;
  for (const Tensor& parameter : model_.module->parameters()) count += parameter.count();
  return count;
}

Tensor StepTrainer::bare_step() {
  optimizer_->zero_grad();
  Tensor loss = nn::cross_entropy((*ddp_)(x_), labels_);
  scaled(loss).backward();
  update();
  return loss;
}

void StepTrainer::update() {
  optimizer_->step();
  if (averager_) averager_->average_parameters();
}

// Costs of the buckets of the next step: those of the first step differ from all later ones.
void StepTrainer::note_costs() {
  const DelayCost cost = delay_cost_from_environment();
  cost_ms_.clear();
  for (const BucketLayout& bucket : ddp_->reducer().buckets())
    cost_ms_.push_back(1e-6 * static_cast<double>(cost.of(bucket.bytes).count()));
}

// The maximum over buckets i of ready_i + the costs of i and all later ones: the time that a wire needs if it is never
// idle.
double StepTrainer::wire_ms(double first_ready_ms) {
  ready_ms_.clear();
  for (const BucketTimes& bucket : times()) ready_ms_.push_back(first_ready_ms + 1e3 * bucket.ready);
  double later = 0, longest = 0;
  for (std::size_t i = cost_ms_.size(); i-- > 0;) {
    later += cost_ms_[i];
    longest = std::max(longest, ready_ms_[i] + later);
  }
  return longest;
}

}  // namespace lockstep::bench
