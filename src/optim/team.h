// Optimizers that step together, for strategies: replicas with equal gradients, or the stages of a pipeline, each with
// its own parameters.
//
// A rate or factor set on one is set on all. Each replica has a state, and all are the same. Stages have one state,
// that of the entire model, whichever of them is queried. With loss scaling all share one LossScaler: each step makes
// one decision, from the gradients of all, and one change of the scale. is one, that of their whole model, whichever is
// asked for it. Under loss scaling all share one LossScaler: there is one decision, by the gradients of all, and one
// change of the scale a step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

class Team {
 public:
  enum class Kind { kReplicas, kStages };
  // Skips null members (stages that train nothing). The optimizers must outlive the team. Throws InvalidArgument, with
  // the strategy's name, unless all have the same LossScaler or none has one.
  Team(const char* strategy, Kind kind, const std::vector<Optimizer*>& members);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  const char* name() const { return strategy_; }
  LossScaler* loss_scaler() const { return scaler_; }

  // Makes a step. `on_all(work)` must call work(member) with the number of each member, on any threads, and return when
  // all calls have ended.
  template <typename OnAll> void step(const OnAll& on_all) {
    begin();
    if (scaler_ != nullptr) {
      on_all([this](int member) { find_bad(member); });
      decide(found_bad());
    }
    on_all([this](int member) { update(member); });
    end();
  }
  // The parts of a step, for processes that decide together: begin(), find_bad() of all members, decide(), update() of
  // all, end().
  void begin();
  void find_bad(int member);
  bool found_bad() const;  // in any member; blocks until the devices are done
  void decide(bool is_bad);
  void update(int member);
  void end();

  void set_lr(float lr);
  void set_lr_factor(std::size_t group, float factor);
  std::vector<StatePart> state_parts(Optimizer& asked);

  // Returns the state of a stage, under names that no other stage uses. A team of one may have any stage.
  std::vector<StatePart> parts_of_stage(int stage);
  // This team has one of `stages` stages, and other processes have the others: adds their parts, without elements.
  void set_only_stage(int stage, std::vector<StatePart> before, std::vector<StatePart> after, int stages);

 private:
  struct Member {
    Optimizer* optimizer = nullptr;
    LossScaleState* scale = nullptr;  // for this step, on the member's device
  };
  Device& device_of(const Member& member) const { return member.optimizer->parameters().front().tensor.device(); }
  Member& first();

  const char* const strategy_;
  const Kind kind_;
  std::vector<Member> members_;
  LossScaler* scaler_ = nullptr;
  std::vector<StatePart> before_, after_;
  int stages_elsewhere_ = 0, only_stage_ = 0;
};

}  // namespace lockstep::optim
