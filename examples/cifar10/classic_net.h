// The network of the recipe `classic`.
#pragma once

#include <lockstep/lockstep.h>

#include <vector>

// Images (N, 24, 24, 3) to logits (N, 10). In training it adds 0.004 times half the sum of squares of each weight that
// decays to the loss: "local3/weight_loss", "local4/weight_loss".
class ClassicNet : public lockstep::nn::Sequential {
 public:
  ClassicNet();
  lockstep::Tensors forward_all(const lockstep::Tensors& inputs) override;
  std::string kind() const override { return "ClassicNet"; }

  // Outputs of the layers with parameters, by name, without recording.
  std::vector<lockstep::NamedTensor> activations(const lockstep::Tensor& images);

 private:
  lockstep::nn::Linear &local3_, &local4_;
};
