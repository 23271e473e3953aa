// Exponential moving averages of weights, which often generalise better than the weights (Polyak and Juditsky,
// "Acceleration of stochastic approximation by averaging", 1992; the form and ramp of TensorFlow's
// tf.train.ExponentialMovingAverage):
//
//   average += (weight - average) * (1 - d),   d = decay, or with `ramp` min(decay, (1 + n) / (10 + n)) after n updates
//
//   optim::ExponentialMovingAverage ema(ddp.parameters(), {.decay = 0.999});
//   sgd.step();
//   ema.update();
//   { const auto averaged = ema.swapped(); evaluate(...); }      // the model has the averages, until the scope ends
#pragma once

#include <vector>

#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

class SwappedScopes;

struct ExponentialMovingAverageOptions {
  double decay = 0.999;
  bool ramp = true;  // TensorFlow's num_updates: young averages follow fast
};

// Updates are elementwise and without contraction: ranks with equal weights have equal averages. The averages follow
// the parameters to another device, at the next call.
class ExponentialMovingAverage {
 public:
  // The averages begin as copies of the parameters, float32. InvalidArgument: no parameters, a decay outside of [0, 1).
  explicit ExponentialMovingAverage(std::vector<NamedTensor> parameters,
                                    const ExponentialMovingAverageOptions& options = {});
  ExponentialMovingAverage(const ExponentialMovingAverage&) = delete;
  ExponentialMovingAverage& operator=(const ExponentialMovingAverage&) = delete;

  // After an optimizer's step: one fused pass, on a GPU only queued; may be part of a recorded step (ddp/graph.h).
  // InvalidArgument while the parameters are swapped.
  void update();

  // While one lives, the parameters hold the averages; its end puts the weights back, bit for bit, also where an
  // exception ends it. The weights wait in memory of their own, which stays allocated. One at a time (InvalidArgument);
  // it must not outlive the averages. A step meanwhile would be lost. save_checkpoint() saves the waiting weights as
  // the model's, load_checkpoint() refuses; save_safetensors() writes what the parameters hold, the averages, and its
  // metadata says so.
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

  // For checkpoints (CheckpointParts::ema): "<parameter>.ema", and "ema.clock", which counts updates. They are the live
  // ones.
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
