// A strategy that is chosen before there is a model, and its scope(), as TensorFlow's strategies have one:
//
//   const train::MirroredStrategy strategy;  // the GPUs, or where there are none the logical CPUs
//   const auto trainer = strategy.scope([] {
//     auto made = std::make_unique<train::Trainer>([] { return std::make_unique<Net>(); });
//     made->compile({.optimizer = ..., .loss = ...});  // by the scope's strategy
//     return made;
//   });
//   trainer->fit(data::Pipeline(train).batch(32 * strategy.num_replicas_in_sync()), {.epochs = 10});
//
// A Trainer that is made in a scope, and make_strategy() there, take the scope's strategy and its devices. Models that
// these make, by the function which they are given, are the strategy's: a copy on each device, equal bit for bit after
// each step (Strategy::replicas()). A model that was built elsewhere is none of them, and is refused, as are a second
// strategy in the scope and options beside the scope's.
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

// Copies are the same strategy. Any thread may use it.
class StrategyChoice {
 public:
  // A name of strategies(). Throws InvalidArgument as make_strategy() does for an unknown name, and for options, of a
  // strategy that drives its devices from one process; ddp and others with ranks check these on all of them once there
  // is a model. What it throws is this rank's alone: if it goes on without a choice, the others wait for it in
  // make_strategy().
  explicit StrategyChoice(const std::string& name, const StrategyOptions& options = {});

  const std::string& name() const;
  const StrategyOptions& options() const;  // of one process: with the devices that it drives
  // In how many equal parts a step's samples are cut: devices, of ddp, zero and local_sgd ranks, one of model_parallel.
  // Throws InvalidArgument for a parameter_server, whose Strategy::workers() are known once it is made, and for ddp
  // without a group.
  int num_replicas_in_sync() const;

  // Runs `build` on the calling thread, within the scope, and returns what it returns; the scope ends when `build`
  // returns or throws. Other threads are not in it. A scope within a scope of the same strategy is that scope;
  // InvalidArgument within another one's.
  template <typename Build>
  decltype(auto) scope(Build&& build) const {
    const Entered entered(*this);
    return std::forward<Build>(build)();
  }

  // The innermost scope that this thread is in.
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
  static std::shared_ptr<const Impl>& current();  // of this thread; null: it is in no scope

  std::shared_ptr<const Impl> impl_;
};

// "mirrored" on these devices; none given: the logical GPUs, or where there are none the logical CPUs.
class MirroredStrategy : public StrategyChoice {
 public:
  explicit MirroredStrategy(std::vector<Device*> devices = {});
};

// The strategy of the scope that this thread is in, see make_strategy(name, training, options). Throws InvalidArgument
// outside of scopes.
std::unique_ptr<Strategy> make_strategy(Training training);

}  // namespace lockstep::train
#pragma GCC visibility pop
