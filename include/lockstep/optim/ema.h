// Exponential moving averages of weights, which often generalise better than the weights (Polyak and Juditsky,
// "Acceleration of stochastic approximation by averaging", 1992; formula and ramp of TensorFlow's
// tf.train.ExponentialMovingAverage):
//
//   average += (weight - average) * (1 - d),   d = decay, or with `ramp` min(decay, (1 + n) / (10 + n)) after n updates
//
//   optim::ExponentialMovingAverage ema(ddp.parameters(), {.decay = 0.999});
//   sgd.step();
//   ema.update();
//   { const auto averaged = ema.swapped(); evaluate(...); }      // the model holds the averages until the scope ends
#pragma once

#include <vector>

#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

class SwappedScopes;

struct ExponentialMovingAverageOptions {
  double decay = 0.999;
  bool ramp = true;  // as TensorFlow's num_updates: early averages follow quickly
};

// Updates are elementwise and without contraction, so ranks with equal weights have equal averages. If the parameters
// move to another device, the averages follow at the next call.
class ExponentialMovingAverage {
 public:
  // The averages start as float32 copies of the parameters. Throws InvalidArgument without parameters or for a decay
  // outside [0, 1).
  explicit ExponentialMovingAverage(std::vector<NamedTensor> parameters,
                                    const ExponentialMovingAverageOptions& options = {});
  ExponentialMovingAverage(const ExponentialMovingAverage&) = delete;
  ExponentialMovingAverage& operator=(const ExponentialMovingAverage&) = delete;

  // Call it after an optimizer's step. One fused pass, which a GPU only queues; can be part of a recorded step
  // (ddp/graph.h). Throws InvalidArgument while the parameters are swapped.
  void update();

  // While it exists, the parameters hold the averages. The destructor restores the weights bit for bit, also during an
  // exception. The weights are kept in separate memory, which stays allocated. Only one may exist at a time (else
  // InvalidArgument), and it must not outlive the averages. An optimizer step in the meantime would be lost.
  // save_checkpoint() saves the kept weights as the model's and load_checkpoint() throws. save_safetensors() writes the
  // averages that the parameters hold and records this in its metadata.
  class Swapped {
   public:
    explicit Swapped(ExponentialMovingAverage& averages);
    ~Swapped();
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;

   private:
    ExponentialMovingAverage& averages_;
  };
  [[nodiscard]] Swapped swapped() { return Swapped(*this); }

  // The live tensors for checkpoints (CheckpointParts::ema): "<parameter>.ema", and "ema.clock", which counts updates.
  std::vector<NamedTensor> state();

 private:
  friend class SwappedScopes;
  void follow_parameters();

  std::vector<NamedTensor> parameters_;
  std::vector<Tensor> averages_;
  std::vector<Tensor> weights_;  // while swapped
  Tensor clock_;
  ExponentialMovingAverageOptions options_;
  bool is_swapped_ = false;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop
