// state_dict() and load_state_dict() of optimizers, as in PyTorch. Checkpoints (train/checkpoint.h) do not use them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer.h"
#include "src/optim/team.h"

namespace lockstep::optim {

namespace {

constexpr const char* kRate = "lr";

std::string factor_name(std::size_t group) { return fmt::format("group{}.lr_factor", group); }
std::string decay_name(std::size_t group) { return fmt::format("group{}.weight_decay", group); }

NamedTensor number(std::string name, float value) {
  return {std::move(name), Tensor::from<float>(std::array{value}, {1}, cpu_device())};
}

std::string kind_of(const Tensor& tensor) {
  return tensor.defined() ? fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().text()) : "undefined";
}

// "; missing from the state dict: 'a', 'b'"; empty if there are none.
std::string list_of(const char* what, const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) text += (text.empty() ? "; " + std::string(what) + ": " : ", ") + entry;
  return text;
}

// The entries of a state dict, taken out by name.
class Entries {
 public:
  explicit Entries(const std::vector<NamedTensor>& entries) {
    for (const NamedTensor& entry : entries)
      if (!given_.emplace(entry.name, &entry.tensor).second) repeated_.push_back(fmt::format("'{}'", entry.name));
  }

  // Returns an undefined tensor, and notes the difference, if there is no such entry of this shape and type.
  Tensor take(const std::string& name, const Tensor& own) {
    const auto found = given_.find(name);
    if (found == given_.end()) {
      missing_.push_back(fmt::format("'{}' {}", name, kind_of(own)));
      return {};
    }
    const Tensor source = *found->second;
    given_.erase(found);
    if (source.defined() && source.shape() == own.shape() && source.dtype() == own.dtype()) return source;
    different_.push_back(fmt::format("'{}' is {} here, {} in the state dict", name, kind_of(own), kind_of(source)));
    return {};
  }

  void finish(const std::string& kind) const {
    std::vector<std::string> unexpected;
    for (const auto& [name, tensor] : given_) unexpected.push_back(fmt::format("'{}' {}", name, kind_of(*tensor)));
    std::sort(unexpected.begin(), unexpected.end());
    const std::string text = list_of("missing from the state dict", missing_) +
                             list_of("unexpected in the state dict", unexpected) + list_of("different", different_) +
                             list_of("more than once in the state dict", repeated_);
    if (!text.empty())
      throw InvalidArgument(
          "{}::load_state_dict: the state dict does not fit this optimizer, which was not changed{}. Load the state "
          "dict of an optimizer of the same class, options and groups, over parameters of the same names",
          kind, text);
  }

 private:
  std::unordered_map<std::string, const Tensor*> given_;
  std::vector<std::string> missing_, different_, repeated_;
};

}  // namespace

void Optimizer::check_has_whole_state(const char* call) const {
  if (team_ != nullptr)
    throw InvalidArgument(
        "{}::{}: the optimizer belongs to strategy '{}', which has several with parts of the state: use "
        "save_checkpoint() and load_checkpoint(), or Trainer::save() and load()",
        kind_, call, team_->name());
  if (!slices_.empty())
    throw InvalidArgument(
        "{}::{}: the optimizer has only slices of the state, 1 of {}: PyTorch would call consolidate_state_dict(); use "
        "save_checkpoint() and load_checkpoint(), which join and divide the slices",
        kind_, call, slice_holders_);
}

std::vector<NamedTensor> Optimizer::state_dict() {
  check_has_whole_state("state_dict");
  std::vector<NamedTensor> entries;
  for (const NamedTensor& live : state()) entries.push_back({live.name, live.tensor.clone()});
  entries.push_back(number(kRate, lr_));
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    entries.push_back(number(factor_name(i), groups_[i].lr_factor));
    entries.push_back(number(decay_name(i), groups_[i].weight_decay));
  }
  return entries;
}

void Optimizer::load_state_dict(const std::vector<NamedTensor>& entries) {
  check_has_whole_state("load_state_dict");
  Entries given(entries);
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const NamedTensor& live : state()) copies.emplace_back(live.tensor, given.take(live.name, live.tensor));
  const Tensor one = Tensor::empty({1}, DType::kFloat32, cpu_device());
  const Tensor rate = given.take(kRate, one);
  std::vector<std::pair<Tensor, Tensor>> settings;  // factor and decay of each group
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Tensor factor = given.take(factor_name(i), one);
    settings.emplace_back(std::move(factor), given.take(decay_name(i), one));
  }
  given.finish(kind_);
  for (const auto& [factor, decay] : settings)
    if (!is_rate(rate.item()) || !is_rate(factor.item()) || !is_rate(rate.item() * factor.item()) ||
        !is_rate(decay.item()))
      throw InvalidArgument(
          "{}::load_state_dict: the state dict has lr {}, lr_factor {} and weight_decay {}; expected finite numbers of "
          "0 or more",
          kind_, rate.item(), factor.item(), decay.item());
  for (const auto& [live, source] : copies) live.copy_from(source);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].weight_decay = settings[i].second.item();
    groups_[i].lr_factor = settings[i].first.item();
  }
  set_own_lr(rate.item());
}

}  // namespace lockstep::optim
