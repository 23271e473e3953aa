// Optimizers: step() changes the parameters by their gradients; a checkpoint keeps the state.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep::optim {

// Can it be a learning rate: finite, and not negative?
inline bool is_rate(float lr) { return std::isfinite(lr) && lr >= 0; }

class Optimizer {
 public:
  // A tensor under two names (tied weights) counts once, under the first. Throws InvalidArgument when there is none, when one
  // requires no gradient, and when two tensors share memory (with both names).
  explicit Optimizer(std::vector<NamedTensor> parameters);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;  // a copy would share the state, and change the same parameters
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient since the last zero_grad(). Elementwise and without contraction: ranks
  // with equal weights and gradients keep equal weights, whatever their CPUs. An optimizer of your own calls mark_changed() of each
  // parameter that it updates: else a backward that read the old values would not notice.
  virtual void step() = 0;
  // Forgets the gradients: the next backward overwrites them. Touches no memory.
  void zero_grad();

  virtual float lr() const = 0;
  // From the next step on, also of one that is recorded (ddp/graph.h). InvalidArgument: not a finite number, or negative, or a change while
  // a graph is recorded. An optimizer of your own follows in graphs only if its kernels read the rate from memory of the device, as SGD's
  // do: an argument's value is recorded.
  virtual void set_lr(float lr) = 0;

  // The tensors that a checkpoint saves beside the weights, named "<parameter>.<state>" ("conv1.weight.momentum"). They are
  // the live ones: loading writes into them.
  virtual std::vector<NamedTensor> state() = 0;
  virtual std::string kind() const = 0;  // "SGD"

  const std::vector<NamedTensor>& parameters() const { return parameters_; }

 protected:
  std::vector<NamedTensor> parameters_;
};

}  // namespace lockstep::optim
