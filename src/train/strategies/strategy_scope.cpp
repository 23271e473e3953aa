#include "lockstep/train/strategy_scope.h"

#include <atomic>

#include "lockstep/core/error.h"
#include "src/nn/module/build_scope.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/strategy_options.h"

namespace lockstep::train {

struct StrategyChoice::Impl {
  std::string name;
  StrategyOptions options;
  std::uint64_t number = 0;  // of modules that are built in its scope
};

std::shared_ptr<const StrategyChoice::Impl>& StrategyChoice::current() {
  thread_local std::shared_ptr<const Impl> current;
  return current;
}

StrategyChoice::StrategyChoice(const std::string& name, const StrategyOptions& options) {
  static std::atomic<std::uint64_t> last{0};
  impl_ = std::make_shared<const Impl>(Impl{name, options_of_choice(name, options), ++last});
}

const std::string& StrategyChoice::name() const { return impl_->name; }
const StrategyOptions& StrategyChoice::options() const { return impl_->options; }

int StrategyChoice::num_replicas_in_sync() const {
  const StrategyCapabilities& can = strategy_named(name()).capabilities;
  if (can.has_servers)
    throw InvalidArgument(
        "{}: the number of workers is known once the strategy is made: take its workers()->world_size()", name());
  if (can.has_stages) return 1;
  if (!can.has_ranks) return static_cast<int>(options().devices.size());
  const auto group = options().group ? options().group : default_process_group();
  return group ? group->world_size() : place_in_job().world_size;
}

std::optional<StrategyChoice> StrategyChoice::of_thread() {
  return current() ? std::optional(StrategyChoice(current())) : std::nullopt;
}

StrategyChoice::Entered::Entered(const StrategyChoice& choice) : before_(current()), number_before_(nn::build_scope) {
  if (before_ && before_ != choice.impl_)
    throw InvalidArgument(
        "scope(): the scope of strategy '{}' within that of {}'{}': one strategy has a scope at a time: leave the "
        "outer one",
        choice.name(), before_->name == choice.name() ? "another " : "", before_->name);
  current() = choice.impl_;
  nn::build_scope = choice.impl_->number;
}

StrategyChoice::Entered::~Entered() {
  current() = before_;
  nn::build_scope = number_before_;
}

}  // namespace lockstep::train
