// A LibTorch module's parameters and buffers: what the ranks compare, what a wrapper refuses, what has changed, and
// their values as bytes for all ranks.
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/reduce/bucket_plan.h"
#include "src/torch/torch_streams.h"

namespace lockstep {

using NamedTorchTensor = std::pair<std::string, at::Tensor>;

// Each parameter once, also one that has two names. A tensor with an ignored name is left out under all its names.
using TorchNames = std::vector<std::string>;
std::vector<NamedTorchTensor> torch_parameters(const torch::nn::Module& module, const TorchNames& ignored = {});
std::vector<NamedTorchTensor> torch_buffers(const torch::nn::Module& module, const TorchNames& ignored = {});
// Returns "", or which of the names is not a parameter or buffer.
std::string refused_names(const torch::nn::Module& module, const TorchNames& ignored);

std::optional<DType> dtype_of(at::ScalarType type);
// "Float (64, 3, 3, 3), strides (27, 1, 9, 3)"; without strides for row-major order.
std::string described(const at::Tensor& tensor);

// Returns "", or why these cannot be wrapped in a group with this device.
std::string refused_tensors(const std::vector<NamedTorchTensor>& parameters,
                            const std::vector<NamedTorchTensor>& buffers, const Device& device);
// For check_same_on_all_ranks().
std::vector<std::string> lines_of(const std::vector<NamedTorchTensor>& parameters,
                                  const std::vector<NamedTorchTensor>& buffers);
// Parameters that require a gradient.
GradientInfo describe_gradient(const NamedTorchTensor& parameter);

// Replaces the values on all ranks by the root's, in one call. Collective; blocks on the CPU. On a GPU, torch's current
// stream has the values for what is queued on it later.
void broadcast_values(ProcessGroup& group, TorchStreams& streams, const std::vector<NamedTorchTensor>& tensors,
                      const char* what, int root);

// Detects changes of a wrapped module.
class TorchModuleWatch {
 public:
  TorchModuleWatch(const std::vector<NamedTorchTensor>& parameters, const std::vector<NamedTorchTensor>& buffers);
  // Returns "", or how the module changed.
  std::string change(const std::vector<NamedTorchTensor>& parameters,
                     const std::vector<NamedTorchTensor>& buffers) const;

 private:
  struct Seen {
    std::string name;
    at::Tensor tensor;
    std::string description;
    std::vector<std::int64_t> sizes, strides;
    at::ScalarType type;
    at::Device device;
    bool requires_grad;
  };
  static std::string added_or_removed(const std::vector<Seen>& seen, const std::vector<NamedTorchTensor>& now);
  static std::string difference(const std::vector<Seen>& seen, const std::vector<NamedTorchTensor>& now);
  static std::vector<Seen> seen_of(const std::vector<NamedTorchTensor>& tensors);

  std::vector<Seen> parameters_, buffers_;
};

// Claims parameters for one wrapper of this process.
class TorchClaim {
 public:
  TorchClaim() = default;
  ~TorchClaim();
  TorchClaim(const TorchClaim&) = delete;
  TorchClaim& operator=(const TorchClaim&) = delete;
  // Returns "" and claims them, or returns why not.
  std::string take(const std::vector<NamedTorchTensor>& parameters);

 private:
  std::vector<const void*> held_;
};

}  // namespace lockstep
