// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): SGD with momentum whose update
// of a weight matrix is made nearly orthogonal by Newton-Schulz iterations. In PyTorch's form:
//
//   buffer = momentum * buffer + (1 - momentum) * grad
//   update = nesterov ? momentum * buffer + (1 - momentum) * grad : buffer
//   X = update / max(|update|, eps), |.| the Frobenius norm; transposed while it has more rows than columns
//   5 times:  A = X X^T;  X = a X + (b A + c A A) X           with a, b, c = 3.4445, -4.7750, 2.0315
//   w -= lr * (weight_decay * w + factor * X)
//
// For the weight matrices of hidden layers only. Give embeddings, the output layer, biases and norms to AdamW, in a
// second optimizer (docs/optimizers.md has an example).
#pragma once

#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

// `factor` of a matrix of R rows and C columns. kOriginal: sqrt(max(1, R / C)). kMatchRmsAdamW: 0.2 * sqrt(max(R, C)),
// with which a rate that suits AdamW suits Muon (Liu et al., "Muon is Scalable for LLM Training", 2025).
enum class MuonFactor { kOriginal, kMatchRmsAdamW };

struct MuonOptions {
  float lr = 1e-3f;
  float momentum = 0.95f;
  float weight_decay = 0.1f;
  bool nesterov = true;
  float eps = 1e-7f;   // above 0
  int iterations = 5;  // 1 to 99
  MuonFactor factor = MuonFactor::kOriginal;
};

// Computes in float32, also under an AutoCast, where PyTorch's has 16 bits in the iterations. A parameter (O, ...) of
// more than two dimensions, the filters of a convolution, is a matrix (O, rest).
//
// The update of an element reads the whole matrix: with ZeroRedundancyOptimizer each matrix has one rank that updates
// it, so that ranks share the work as well as the state. There is no loss scaling. A step allocates temporaries of a
// parameter's size. Matrix products do not have the same bits on every processor: without ZeroRedundancyOptimizer train
// only on ranks of equal processors, kernels (LOCKSTEP_ISA) and threads; replicas of others drift apart, which
// check_equal_replicas() (ddp/equal_replicas.h) finds.
//
// State: "<parameter>.momentum_buffer".
class Muon : public Optimizer {
 public:
  // Throws InvalidArgument, with its name, for a parameter of fewer than two dimensions, and for options out of range.
  explicit Muon(std::vector<NamedTensor> parameters, const MuonOptions& options = {});

 private:
  void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
              Stream& stream) override;
  Tensor orthogonal(const Tensor& update) const;

  MuonOptions options_;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop
