// A replacement like cuda_runtime.h: attention in cudnn-frontend, as kernels/cuda/cudnn_attention.cpp calls it. A graph
// is checked against the rules of
// https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html, and computed by plain loops
// over its strides, in float.
//
// The deterministic gradient needs workspace for 2 bytes of each query and key, as on Hopper; the other one gives
// different bits in every call. "Not supported", each in the way in which cuDNN says so, are: gradients of heads wider
// than 128 and of one query and key (when the graph is validated), five heads (when it is built; an error of the
// interface), six heads with a deterministic gradient (when engines are looked for). With seven heads the driver fails.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tests/kernels/emulated_cuda/cudnn.h"

// NOLINTBEGIN(readability-identifier-naming): NVIDIA's names.
namespace cudnn_frontend {

class error_t;
enum class DiagonalAlignment_t { TOP_LEFT, BOTTOM_RIGHT };

namespace graph {

struct Tensor_attributes;

struct Attention_parameters {
  float scale = 1;
  std::optional<int> right_bound;
  DiagonalAlignment_t alignment = DiagonalAlignment_t::TOP_LEFT;
  bool generates_stats = false, is_deterministic = false;
};
template <typename Self> struct Attention_attributes : Attention_parameters {
  Self& set_attn_scale(float value) { return scale = value, static_cast<Self&>(*this); }
  Self& set_diagonal_alignment(DiagonalAlignment_t value) { return alignment = value, static_cast<Self&>(*this); }
  Self& set_diagonal_band_right_bound(int value) { return right_bound = value, static_cast<Self&>(*this); }
};
struct SDPA_attributes : Attention_attributes<SDPA_attributes> {
  SDPA_attributes& set_generate_stats(bool value) { return generates_stats = value, *this; }
};
struct SDPA_backward_attributes : Attention_attributes<SDPA_backward_attributes> {
  SDPA_backward_attributes& set_deterministic_algorithm(bool value) { return is_deterministic = value, *this; }
};

// The attention of a graph, forward or backward.
class Attention {
 public:
  using Tensor = std::shared_ptr<Tensor_attributes>;

  Attention(Tensor q, Tensor k, Tensor v, const Attention_parameters& parameters);
  Attention(Tensor q, Tensor k, Tensor v, Tensor y, Tensor y_grad, Tensor stats,
            const Attention_parameters& parameters);
  const Tensor& y() const { return y_; }
  const Tensor& stats() const { return stats_; }
  const Tensor& q_grad() const { return q_grad_; }
  const Tensor& k_grad() const { return k_grad_; }
  const Tensor& v_grad() const { return v_grad_; }

  error_t validate() const;
  error_t build_operation_graph() const;
  error_t create_execution_plans() const;
  std::int64_t workspace() const;
  error_t execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers, void* workspace) const;

 private:
  std::vector<Tensor> rows() const;      // all tensors but the statistics
  std::vector<Tensor> computed() const;  // what the graph writes
  std::int64_t visible(std::int64_t query) const;
  void forward(std::unordered_map<std::int64_t, void*>& pointers) const;
  void backward(std::unordered_map<std::int64_t, void*>& pointers, int execution) const;

  Tensor q_, k_, v_, y_, stats_, y_grad_, q_grad_, k_grad_, v_grad_;  // the last four: null in forward
  Attention_parameters parameters_;
  mutable int executions_ = 0;
};

}  // namespace graph
}  // namespace cudnn_frontend
// NOLINTEND(readability-identifier-naming)
