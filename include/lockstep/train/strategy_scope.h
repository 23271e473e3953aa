// Chooses a strategy before there is a model, with a scope() as in TensorFlow:
//
//   const train::MirroredStrategy strategy;  // the GPUs, or the logical CPUs if there are no GPUs
//   const auto trainer = strategy.scope([] {
//     auto made = std::make_unique<train::Trainer>([] { return std::make_unique<Net>(); });
//     made->compile({.optimizer = ..., .loss = ...});  // uses the scope's strategy
//     return made;
//   });
//   trainer->fit(data::Pipeline(train).batch(32 * strategy.num_replicas_in_sync()), {.epochs = 10});
//
// A Trainer that is made in a scope, and make_strategy() there, take the scope's strategy and its devices. The models
// that they make, by the function that they are given, belong to the strategy: a copy on each device, with equal bits
// after each step (Strategy::replicas()). A model that was built elsewhere is refused, and so are another strategy in
// the scope and options in addition to the scope's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/strategy.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// Copies refer to the same strategy. Any thread may use them.
class StrategyChoice {
 public:
  // Takes a name of strategies(). Throws InvalidArgument as make_strategy() does for an unknown name, and for the
  // options of a strategy that drives its devices from one process; strategies with ranks check options on all ranks in
  // make_strategy(). This rank alone throws: if it continues without a choice, the others wait for it in
  // make_strategy().
  explicit StrategyChoice(const std::string& name, const StrategyOptions& options = {});

  const std::string& name() const;
  const StrategyOptions& options() const;  // for a strategy of one process: with the devices that it drives
  // The number of equal parts into which a step's samples are cut: ranks, or devices if one process drives them;
  // model_parallel: 1. Throws InvalidArgument for a parameter_server, whose Strategy::workers() are known after it is
  // made.
  int num_replicas_in_sync() const;

  // Runs `build` on the calling thread in the scope and returns its result; the scope ends when `build` returns or
  // throws. Other threads are not in it. Nesting scopes of the same strategy has no effect; nesting those of different
  // strategies throws InvalidArgument.
  template <typename Build> decltype(auto) scope(Build&& build) const {
    const Entered entered(*this);
    return std::forward<Build>(build)();
  }

  // Returns the innermost scope of this thread.
  static std::optional<StrategyChoice> of_thread();

  bool operator==(const StrategyChoice& other) const { return impl_ == other.impl_; }

 private:
  struct Impl;
  class Entered {
   public:
    explicit Entered(const StrategyChoice& choice);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    std::shared_ptr<const Impl> before_;
    std::uint64_t number_before_;
  };

  explicit StrategyChoice(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  static std::shared_ptr<const Impl>& current();  // of this thread; null: no scope

  std::shared_ptr<const Impl> impl_;
};

// The strategy "mirrored" on these devices. Empty: the logical GPUs, or the logical CPUs if there are no GPUs.
class MirroredStrategy : public StrategyChoice {
 public:
  explicit MirroredStrategy(std::vector<Device*> devices = {});
};

// Makes the strategy of this thread's scope, see make_strategy(name, training, options). Throws InvalidArgument outside
// scopes.
std::unique_ptr<Strategy> make_strategy(Training training);

}  // namespace lockstep::train
#pragma GCC visibility pop
