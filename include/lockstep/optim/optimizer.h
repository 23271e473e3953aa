// Optimizers: step() updates the parameters from their gradients; checkpoints keep the state.
//
// The base class has the common parts: parameter groups, learning rate, loss scaling, state by name. A derived
// optimizer is a formula (kernels/updates/), one line of the kernel table and the names of its state: see optim/adam.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/kernels.h"
#include "lockstep/optim/loss_scaler.h"
#include "lockstep/optim/parameter_group.h"
#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

class [[gnu::visibility("hidden")]] Team;            // src/optim/team.h
class [[gnu::visibility("hidden")]] LiveOptimizers;  // src/optim/live_optimizers.h

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;  // a copy would share the state and change the same parameters
  Optimizer& operator=(const Optimizer&) = delete;

  // Adds parameters and keeps the existing state. Throws InvalidArgument as the constructor does, and for a parameter
  // that the optimizer already has.
  void add_group(ParameterGroup group);

  // Updates every parameter that has a gradient since the last zero_grad(), in one fused pass per group, which a GPU
  // only queues. Updates are elementwise and without contraction, so ranks with equal weights and gradients keep equal
  // weights on any CPU. Allocates only in the first call. Steps are counted per parameter, as in PyTorch. With loss
  // scaling, a step with an infinite or NaN gradient changes and counts nothing, and too many in a row throw Error
  // (optim/loss_scaler.h). Collective if ranks share the state (ddp/zero.h). Throws InvalidArgument, before any change,
  // for a gradient that no_sync() left on one of several ranks.
  void step();
  // Drops the gradients without touching memory; the next backward overwrites them.
  void zero_grad();

  float lr() const { return lr_; }
  // Sets the rate of all groups, which is multiplied by their factors, from the next step on, including recorded steps
  // (ddp/graph.h). Throws InvalidArgument if it is negative or not finite, or changes while a graph is recorded. On an
  // optimizer of a strategy, sets rates and factors of all the strategy's optimizers.
  void set_lr(float lr);
  // Sets the factor of one group: 0 is the constructor's, then those of add_group() in order. Checkpoints do not keep
  // factors.
  void set_lr_factor(std::size_t group, float factor);
  std::size_t groups() const { return groups_.size(); }
  float group_lr(std::size_t group) const;

  // The live tensors that a checkpoint saves and loads: "<parameter>.<state>" ("conv1.weight.momentum"), then step
  // counts ("group0.clock", (parameters of the group, 4): see UpdateClock), then "loss_scaler.state".
  std::vector<NamedTensor> state();
  // As torch.optim.Optimizer's: copies of state(), then "lr", and "group0.lr_factor" and "group0.weight_decay" of each
  // group, as tensors (1). save_safetensors() (train/safetensors.h) writes them. Blocks until the device has computed
  // them. Throws InvalidArgument if this optimizer has only a part of the state (a strategy's, or ddp/zero.h).
  std::vector<NamedTensor> state_dict();
  // Copies the values into this optimizer, on any device: the next step is the one that would have followed
  // state_dict(). Throws InvalidArgument as state_dict() does, and, before any change, for entries that are missing,
  // unexpected, repeated or of another shape or type, all by name.
  void load_state_dict(const std::vector<NamedTensor>& entries);
  // The same as state() with the full shapes. If slice_holders() > 1, optimizers share the state: each has its slices
  // and all counts.
  std::vector<StatePart> state_parts();
  int slice_holders() const { return slice_holders_; }
  const std::string& kind() const { return kind_; }  // "SGD"

  const std::vector<NamedTensor>& parameters() const { return parameters_; }

 protected:
  struct Description {
    const char* kind;
    float lr, weight_decay;
    LossScaler* loss_scaler;               // may be null; must outlive the optimizer
    std::vector<const char*> states = {};  // at most 3 names, in the formula's order
    bool counts_steps = false;             // whether the formula has an UpdateClock per parameter
    float initial_state = 0;
    // true: update() calls one kernel of the table and never reads `grad`: tensors may have UpdateTensor::shared
    bool shares_updates = false;
    bool elementwise = true;  // false: the update of an element reads others (a norm), so it cannot work on slices
    int fewest_dims = 0;      // of a parameter; append() refuses others by name
  };
  // A tensor with two names (tied weights) counts once, under the first. Throws InvalidArgument without parameters, for
  // one that does not require a gradient, for two that share memory (with both names), and for a learning rate or decay
  // that is NaN or infinite.
  Optimizer(std::vector<NamedTensor> parameters, const Description& description);
  explicit Optimizer(const Description& description);  // without parameters: for a rank that trains none

  // Queues the update of `tensors`, which are of one group, on `stream`: one call of the kernel table. The tensors are
  // already marked as changed.
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
    std::size_t begin, end;  // range in parameters_
    float lr_factor, weight_decay;
    float lr;          // the value on the device
    Tensor device_lr;  // read by the kernel, so that a recorded step follows set_lr()
    Tensor clocks;     // (parameters, 4); undefined if the formula does not count
  };
  void append(ParameterGroup group);
  void check_has_whole_state(const char* call) const;
  void follow_parameters();
  void upload_lr(Group& group, float lr);
  void check_gradients() const;
  void make_states();
  void keep_slices(std::vector<Slice> slices, int holders);
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
  std::vector<Tensor> states_;  // those of parameter i start at i * state_names_.size(); made on first use
  std::vector<Slice> slices_;   // of the parameters that this optimizer updates; empty: all of them
  int slice_holders_ = 1, fewest_dims_ = 0;
  std::span<const SharedUpdate> shared_updates_;  // by parameter; owned by the caller of StepParts::share()
  class StepOwner* owner_ = nullptr;              // makes the steps instead of step()
  std::string owner_name_;                        // stays when the owner is gone, for messages
  Team* team_ = nullptr;                          // the optimizers that step together with this one
  std::vector<std::size_t> all_;                  // indices of all parameters: 0, 1, ...
  std::vector<Group> groups_;
  std::uint32_t begun_ = 0, steps_ = 0;  // number of calls of zero_grad(), and of steps
  std::vector<UpdateTensor> tensors_;    // arguments of the kernels, kept so that a step does not allocate
};

}  // namespace lockstep::optim
#pragma GCC visibility pop
