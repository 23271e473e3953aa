#include "lockstep/comm/agreement.h"
#include "lockstep/comm/should_stop.h"
#include "lockstep/core/error.h"
#include "src/core/process/stop_request.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/strategy_options.h"

namespace lockstep::train {

namespace {

// A strategy of one process, which no rank of a job may make without a group of its own.
void check_stands_alone(const StrategyKind& kind, const StrategyOptions& options) {
  if (is_collective(kind, options) || options.group) return;
  check_is_no_rank("make_strategy", fmt::format("strategy '{}'", kind.name),
                   kind.capabilities.has_stages ? ", make each rank a stage by .group = group" : "");
}

// Stages on devices and stages on ranks are different strategies under one name.
std::string compared_text(const std::string& name, const StrategyKind* kind, const StrategyOptions& options) {
  const bool is_over_ranks = kind != nullptr && kind->capabilities.has_stages && options.group;
  return fmt::format("strategy '{}'{}", name, is_over_ranks ? " with a .group" : "");
}

}  // namespace

float Strategy::weighted_step(const Tensor& inputs, const Tensor& targets, float weight) {
  if (weight == 1) return step(inputs, targets);
  throw InvalidArgument(
      "{}: weighted_step() got weight {}: this strategy has no ranks that average gradients: expected 1; give each "
      "process the same number of samples, or leave out the last batch",
      name(), weight);
}

// A strategy of one process without a group decides by itself, also in a job of several ranks.
bool Strategy::should_stop() {
  if (const auto ranks = workers()) return lockstep::should_stop(ranks);
  remember_stop_signals();
  return is_stop_requested();
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, Training training, const StrategyOptions& options) {
  const auto scope = StrategyChoice::of_thread();
  const StrategyOptions asked = scope ? scope->options() : options;
  const StrategyRow* const row = find_strategy(name);
  const StrategyKind* const kind = row != nullptr ? &row->kind : nullptr;
  StrategyOptions chosen;
  const auto check = [&] {
    if (name.empty())
      throw InvalidArgument(
          "make_strategy: which one? Name it, or call this in the scope() of a strategy (train/strategy_scope.h)");
    strategy_named(name);
    if (!training.model || !training.optimizer || !training.loss)
      throw InvalidArgument("{}: Training needs all of .model, .optimizer and .loss", name);
    if (scope) check_is_of_scope(*scope, "make_strategy", name, options);
    chosen = checked_options(*kind, asked);
    check_stands_alone(*kind, asked);
  };
  const auto group = group_of(asked, kind == nullptr || !is_collective(*kind, asked));
  if (group && group->world_size() > 1)
    check_same_on_all_ranks(group, "make_strategy", {compared_text(name, kind, asked)}, "ask for different strategies");
  on_all_ranks(group, check);
  return row->make(std::move(training), chosen);
}

std::unique_ptr<Strategy> make_strategy(Training training) {
  const auto scope = StrategyChoice::of_thread();
  return make_strategy(scope ? scope->name() : "", std::move(training));
}

}  // namespace lockstep::train
