// Optimizers that make a step together, for strategies: replicas, whose gradients are equal, or the stages of a
// pipeline, each with parameters of its own.
//
// A rate or factor that is set on one is set on all. Replicas have a state each, which is the same; the state of stages
// is one, that of their whole model, whichever is asked for it. Under loss scaling all share one LossScaler: there is
// one decision, by the gradients of all, and one change of the scale a step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

class Team {
 public:
  enum class Kind { kReplicas, kStages };
  // Null members (stages that train nothing) stay out. The optimizers outlive the team. Throws InvalidArgument, with
  // the strategy's name, unless all have the same LossScaler, or none has one.
  Team(const char* strategy, Kind kind, const std::vector<Optimizer*>& members);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  const char* name() const { return strategy_; }
  LossScaler* loss_scaler() const { return scaler_; }

  // A step. `on_all(work)` calls work(member) for each member by its number, on whatever threads, and returns when all
  // have ended.
  template <typename OnAll>
  void step(const OnAll& on_all) {
    begin();
    if (scaler_ != nullptr) {
      on_all([this](int member) { find_bad(member); });
      decide(found_bad());
    }
    on_all([this](int member) { update(member); });
    end();
  }
  // Its parts, where ranks decide together: begin(), find_bad() of all members, decide(), update() of all, end().
  void begin();
  void find_bad(int member);
  bool found_bad() const;  // any member; waits for the devices
  void decide(bool is_bad);
  void update(int member);
  void end();

  void set_lr(float lr);
  void set_lr_factor(std::size_t group, float factor);
  std::vector<StatePart> state_parts(Optimizer& asked);

  // The state of a stage, under names that no other one has. Of a team of one it may be any stage: the rank's.
  std::vector<StatePart> parts_of_stage(int stage);
  // Where each of `ranks` ranks has a stage, and this team is the rank's: the parts of the other stages are here
  // without elements.
  void share_among_ranks(int rank, std::vector<StatePart> before, std::vector<StatePart> behind, int ranks);

 private:
  struct Member {
    Optimizer* optimizer = nullptr;
    LossScaleState* scale = nullptr;  // of this step, on its device
  };
  Device& device_of(const Member& member) const { return member.optimizer->parameters().front().tensor.device(); }
  Member& first();

  const char* const strategy_;
  const Kind kind_;
  std::vector<Member> members_;
  LossScaler* scaler_ = nullptr;
  std::vector<StatePart> before_, behind_;
  int ranks_ = 1, rank_ = 0;
};

}  // namespace lockstep::optim
