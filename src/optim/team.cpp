#include "src/optim/team.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "lockstep/core/error.h"
#include "src/core/process/progress_page.h"

namespace lockstep::optim {

namespace {

// Names that do not contain a parameter's (step counts) are the same in all stages.
void name_by_stage(std::vector<StatePart>& parts, const std::vector<NamedTensor>& parameters, int stage) {
  std::unordered_set<std::string_view> names;
  for (const NamedTensor& parameter : parameters) names.insert(parameter.name);
  for (StatePart& part : parts) {
    const std::string_view of = std::string_view(part.name).substr(0, part.name.rfind('.'));
    if (names.count(of) == 0) part.name = fmt::format("stage{}.{}", stage, part.name);
  }
}

void append(std::vector<StatePart>& all, std::vector<StatePart> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

Team::Team(const char* strategy, Kind kind, const std::vector<Optimizer*>& members) : strategy_(strategy), kind_(kind) {
  const Optimizer* known = nullptr;
  for (Optimizer* const optimizer : members) {
    members_.push_back({optimizer});
    if (optimizer == nullptr) continue;
    if (known != nullptr && known->loss_scaler_ != optimizer->loss_scaler_)
      throw InvalidArgument(
          "{}: the optimizers that Training::optimizer() returned do not share one LossScaler: make one outside the "
          "function, give it to each optimizer as .loss_scaler, and scale the loss with it",
          strategy);
    known = optimizer;
    scaler_ = optimizer->loss_scaler_;
  }
  if (scaler_ != nullptr) scaler_->state_on(device_of(first()));
  for (const Member& member : members_)
    if (member.optimizer != nullptr) member.optimizer->team_ = this;
}

Team::~Team() {
  for (const Member& member : members_)
    if (member.optimizer != nullptr) member.optimizer->team_ = nullptr;
}

Team::Member& Team::first() {
  return *std::find_if(members_.begin(), members_.end(),
                       [](const Member& member) { return member.optimizer != nullptr; });
}

void Team::begin() {
  if (scaler_ == nullptr) return;
  scaler_->begin_step(first().optimizer, device_of(first()));
  for (Member& member : members_)
    if (member.optimizer != nullptr) member.scale = scaler_->data_on(device_of(member));
}

void Team::find_bad(int number) {
  Optimizer* const optimizer = members_[static_cast<std::size_t>(number)].optimizer;
  if (optimizer == nullptr) return;
  optimizer->begin_step(/*begins_scaling=*/false);
  optimizer->find_bad_gradients();
}

bool Team::found_bad() const {
  bool any = false;
  for (const Member& member : members_) {
    if (member.optimizer == nullptr) continue;
    Device& device = device_of(member);
    float found = 0;
    device.copy(&found, &member.scale->found_bad, sizeof found, device.default_stream());
    device.default_stream().synchronize();
    any |= found != 0;
  }
  return any;
}

void Team::decide(bool is_bad) {
  if (!is_bad) return;
  constexpr float kFound = 1;
  for (const Member& member : members_)
    if (member.optimizer != nullptr)
      device_of(member).upload(&member.scale->found_bad, &kFound, sizeof kFound, device_of(member).default_stream());
}

void Team::update(int number) {
  Optimizer* const optimizer = members_[static_cast<std::size_t>(number)].optimizer;
  if (optimizer == nullptr || optimizer->parameters_.empty()) return;
  if (scaler_ == nullptr) optimizer->begin_step(/*begins_scaling=*/false);
  optimizer->update_some(optimizer->all_);
}

void Team::end() {
  note_optimizer_step();
  if (scaler_ != nullptr) scaler_->end_step(first().optimizer, device_of(first()));
}

void Team::set_lr(float lr) {
  for (const Member& member : members_)
    if (member.optimizer != nullptr) member.optimizer->check_lr(lr);
  for (const Member& member : members_)
    if (member.optimizer != nullptr) member.optimizer->set_own_lr(lr);
}

void Team::set_lr_factor(std::size_t group, float factor) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Optimizer* const optimizer = members_[i].optimizer;
    if (optimizer != nullptr && !optimizer->parameters().empty() && group >= optimizer->groups())
      throw InvalidArgument(
          "{}: set_lr_factor: group {} does not exist; the optimizer of {} {} has {} groups, and a factor is set on "
          "all optimizers",
          strategy_, group, kind_ == Kind::kStages ? "stage" : "replica", i, optimizer->groups());
  }
  for (const Member& member : members_)
    if (member.optimizer != nullptr && !member.optimizer->parameters().empty())
      member.optimizer->set_own_lr_factor(group, factor);
}

std::vector<StatePart> Team::parts_of_stage(int stage) {
  const std::size_t number = stages_elsewhere_ > 0 || members_.size() == 1 ? 0 : static_cast<std::size_t>(stage);
  Optimizer* const optimizer = members_[number].optimizer;
  if (optimizer == nullptr) return {};
  std::vector<StatePart> parts = optimizer->own_state_parts(false);
  name_by_stage(parts, optimizer->parameters(), stage);
  return parts;
}

std::vector<StatePart> Team::state_parts(Optimizer& asked) {
  if (kind_ == Kind::kReplicas) return asked.own_state_parts(&asked == first().optimizer);
  std::vector<StatePart> all = before_;
  if (stages_elsewhere_ > 0) {
    std::vector<StatePart> own = parts_of_stage(only_stage_);
    for (StatePart& part : own) part.is_slice = true;  // covers all its elements
    append(all, std::move(own));
    append(all, after_);
  } else {
    for (std::size_t stage = 0; stage < members_.size(); ++stage) append(all, parts_of_stage(static_cast<int>(stage)));
  }
  if (scaler_ != nullptr) {
    const Tensor& state = scaler_->state_on(device_of(first()));
    all.push_back({"loss_scaler.state", state, state.shape()});
  }
  return all;
}

void Team::set_only_stage(int stage, std::vector<StatePart> before, std::vector<StatePart> after, int stages) {
  only_stage_ = stage;
  stages_elsewhere_ = stages - 1;
  before_ = std::move(before);
  after_ = std::move(after);
  first().optimizer->slice_holders_ = stages;
}

}  // namespace lockstep::optim
