// Optimizers: step() changes the parameters by their gradients; a checkpoint keeps the state.
//
// The base holds what all have in common: groups of parameters, the learning rate, loss scaling, state by name. An
// optimizer is a formula (kernels/updates/), one line of the kernel table, and the names of its state: see
// optim/adam.h.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/kernels.h"
#include "lockstep/optim/loss_scaler.h"
#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

class [[gnu::visibility("hidden")]] Team;            // src/optim/team.h
class [[gnu::visibility("hidden")]] LiveOptimizers;  // src/optim/live_optimizers.h

inline bool is_rate(float lr) { return std::isfinite(lr) && lr >= 0; }  // can it be a learning rate?

// Parameters with a rate and weight decay of their own; all other options are the optimizer's.
struct ParameterGroup {
  std::vector<NamedTensor> parameters;
  float lr_factor = 1;                // their rate is lr() times this
  std::optional<float> weight_decay;  // none: the optimizer's
};

// A tensor of an optimizer's state, or the slice of it that this rank has.
struct StatePart {
  std::string name;
  Tensor values;           // live; of a slice, one dimension
  Shape whole;             // of the tensor
  std::int64_t begin = 0;  // elements of the tensor before the slice
  bool is_slice = false;
};

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;  // a copy would share the state, and change the same parameters
  Optimizer& operator=(const Optimizer&) = delete;

  // Further parameters; the state of those before stays. InvalidArgument as in the constructor, and for a parameter
  // that is there already.
  void add_group(ParameterGroup group);

  // Updates every parameter that has a gradient since the last zero_grad(), in one fused pass a group; on a GPU it only
  // queues that. Elementwise and without contraction: ranks with equal weights and gradients keep equal weights,
  // whatever their CPUs. Allocates nothing after the first. Steps are counted by parameter, as in PyTorch. Under loss
  // scaling a step with a gradient that is infinite or NaN changes and counts nothing; so many in a row are an Error
  // (optim/loss_scaler.h). Where ranks share the state it is collective (ddp/zero.h). InvalidArgument, before anything
  // changes, for a gradient that no_sync() has left to one rank of several.
  void step();
  // Forgets the gradients: the next backward overwrites them. Touches no memory.
  void zero_grad();

  float lr() const { return lr_; }
  // Of all groups, times their factors. From the next step on, also of one that is recorded (ddp/graph.h).
  // InvalidArgument: not a finite number, or negative, or a change while a graph is recorded. A strategy's optimizer
  // sets rates and factors of all of the strategy's.
  void set_lr(float lr);
  // The same for one group: 0 is the constructor's, then those of add_group() in order. A checkpoint does not keep
  // factors.
  void set_lr_factor(std::size_t group, float factor);
  std::size_t groups() const { return groups_.size(); }
  float group_lr(std::size_t group) const;

  // The live tensors that a checkpoint saves with the weights and loads into: "<parameter>.<state>"
  // ("conv1.weight.momentum"), then counts of steps ("group0.clock", (parameters of the group, 4): see UpdateClock),
  // then "loss_scaler.state".
  std::vector<NamedTensor> state();
  // The same, with the tensors of which they are parts: where slice_ranks() > 1 ranks share the state, each has its
  // slices and all counts.
  std::vector<StatePart> state_parts();
  int slice_ranks() const { return slice_ranks_; }
  const std::string& kind() const { return kind_; }  // "SGD"

  const std::vector<NamedTensor>& parameters() const { return parameters_; }

 protected:
  struct Description {
    const char* kind;
    float lr, weight_decay;
    LossScaler* loss_scaler;               // may be null; must outlive the optimizer
    std::vector<const char*> states = {};  // names, at most 3; in the order of the formula
    bool counts_steps = false;             // has the formula an UpdateClock a parameter?
    float initial_state = 0;
    // true: update() hands its tensors to one kernel of the table and reads no `grad` itself, so that they may have
    // UpdateTensor::ranks.
    bool shares_updates = false;
    bool elementwise =
        true;  // false: the update of an element reads others, a norm of the tensor; then it cannot work on slices
  };
  // A tensor under two names (tied weights) counts once, under the first. InvalidArgument: no parameter, one that
  // requires no gradient, two that share memory (with both names), a learning rate or decay that is NaN or infinite.
  Optimizer(std::vector<NamedTensor> parameters, const Description& description);
  explicit Optimizer(
      const Description& description);  // without parameters: of a rank that trains none, beside others that do

  // Queues the update of `tensors`, of one group, on `stream`: one call of the kernel table. They are marked as changed
  // already.
  virtual void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                      Stream& stream) = 0;

 private:
  friend class StepParts;  // src/optim/step_parts.h
  friend class Team;
  friend class LiveOptimizers;
  struct Slice {
    std::size_t begin, count;  // elements of the parameter
  };
  struct Group {
    std::size_t begin, end;  // of parameters_
    float lr_factor, weight_decay;
    float lr;          // as it is on the device
    Tensor device_lr;  // where the kernel reads it: a recorded step follows set_lr()
    Tensor clocks;     // (parameters, 4); undefined where nothing counts
  };
  void append(ParameterGroup group);
  void follow_parameters();
  void upload_lr(Group& group, float lr);
  void check_gradients() const;
  void make_states();
  void keep_slices(std::vector<Slice> slices, int ranks);
  Slice slice_of(std::size_t parameter) const;
  void gather(const Group& group, std::span<const std::size_t> parameters);
  void check_lr(float lr) const;
  void set_own_lr(float lr);
  void set_own_lr_factor(std::size_t group, float factor);
  std::vector<StatePart> own_state_parts(bool with_scaler);
  void begin_step(bool begins_scaling = true);
  LossScaleState* find_bad_gradients();
  void update_some(std::span<const std::size_t> parameters);
  void end_step();

  std::string kind_;
  float lr_, weight_decay_, initial_state_;
  LossScaler* loss_scaler_;
  std::vector<std::string> state_names_;
  bool counts_steps_, shares_updates_, elementwise_;
  std::vector<NamedTensor> parameters_;
  std::vector<Tensor> states_;  // of parameter i: from i * state_names_.size() on; made when they are first needed
  std::vector<Slice> slices_;   // of the parameters that this rank updates; empty: all of them
  int slice_ranks_ = 1;
  std::span<const UpdateRanks>
      ranks_;  // by parameter, where ranks share an update; kept by who called StepParts::share()
  class StepOwner* owner_ = nullptr;  // who makes the steps in place of step()
  Team* team_ = nullptr;              // the optimizers that make each step together with this one
  std::vector<std::size_t> all_;      // 0, 1, ...: the parameters
  std::vector<Group> groups_;
  std::uint32_t begun_ = 0, steps_ = 0;  // how often zero_grad() was called, and a step made
  std::vector<UpdateTensor> tensors_;    // what step() hands to the kernels, kept so that a step allocates nothing
};

}  // namespace lockstep::optim
#pragma GCC visibility pop
