// A replacement like cuda_runtime.h: the part of cudnn-frontend that kernels/cuda/cudnn_convolution.cpp calls; for
// attention see cudnn_frontend_sdpa.h. A graph is checked against the shapes and strides of its tensors, see
// https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Convolutions.html, and computed by plain loops.
//
// A graph has several engines, whose numerical notes describe how they compute: in TF32, in bfloat16, or with different
// bits in every call; and so they do. Engines that the caller does not want come first in the heuristics' order;
// deselected ones are counted but cannot be built. If a convolution's stride is four, no remaining engine keeps
// float32. The last three engines compute alike; two of them are compiled at run time, and the last one wins every
// measurement.
//
// Some graphs are "not supported", so that the caller's alternatives are tested, too: graphs that fuse an operation
// after a convolution with an odd number of channels, five channels of 16 bits, and kernels of width seven unless the
// workspace may be a GiB; images of six channels cannot be measured; the backend refuses kernels of width eleven when
// the graph is described to it. With kernels of width thirteen the driver fails.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/kernels/emulated_cuda/cudnn.h"
#include "tests/kernels/emulated_cuda/cudnn_frontend_sdpa.h"

// NOLINTBEGIN(readability-identifier-naming): NVIDIA's names.
namespace cudnn_frontend {

enum class error_code_t {
  OK,
  INVALID_VALUE,
  GRAPH_NOT_SUPPORTED,
  GRAPH_EXECUTION_PLAN_CREATION_FAILED,
  HEURISTIC_QUERY_FAILED,
  CUDA_API_FAILED,
  CUDNN_BACKEND_API_FAILED
};

class error_t {
 public:
  error_t() = default;
  explicit error_t(std::string message, error_code_t code = error_code_t::INVALID_VALUE)
      : code_(code), message_(std::move(message)) {}
  error_code_t get_code() const { return code_; }
  bool is_good() const { return message_.empty(); }
  bool is_bad() const { return !is_good(); }
  const std::string& get_message() const { return message_; }

 private:
  error_code_t code_ = error_code_t::OK;
  std::string message_;
};

enum class DataType_t { FLOAT, HALF, BFLOAT16 };
enum class HeurMode_t { A, FALLBACK };
enum class NumericalNote_t { NONDETERMINISTIC, TENSOR_CORE, DOWN_CONVERT_INPUTS, REDUCED_PRECISION_REDUCTION };
enum class BehaviorNote_t { RUNTIME_COMPILATION };
enum class BuildPlanPolicy_t { HEURISTICS_CHOICE, ALL };
enum class PointwiseMode_t { ADD, RELU_FWD };

namespace graph {

using Sizes = std::vector<std::int64_t>;

struct Tensor_attributes {
  std::int64_t uid = 0;
  Sizes dim, stride;
  DataType_t type = DataType_t::FLOAT;
  bool is_output = false;

  Tensor_attributes& set_uid(std::int64_t value) { return uid = value, *this; }
  Tensor_attributes& set_dim(const Sizes& value) { return dim = value, *this; }
  Tensor_attributes& set_stride(const Sizes& value) { return stride = value, *this; }
  Tensor_attributes& set_data_type(DataType_t value) { return type = value, *this; }
  Tensor_attributes& set_output(bool value) { return is_output = value, *this; }
};
using Tensor = std::shared_ptr<Tensor_attributes>;

struct Geometry {
  Sizes pre, post, stride, dilation;
};
template <typename Self> struct Convolution_attributes : Geometry {
  Self& set_pre_padding(const Sizes& value) { return pre = value, static_cast<Self&>(*this); }
  Self& set_post_padding(const Sizes& value) { return post = value, static_cast<Self&>(*this); }
  Self& set_stride(const Sizes& value) { return stride = value, static_cast<Self&>(*this); }
  Self& set_dilation(const Sizes& value) { return dilation = value, static_cast<Self&>(*this); }
};
struct Conv_fprop_attributes : Convolution_attributes<Conv_fprop_attributes> {};
struct Conv_dgrad_attributes : Convolution_attributes<Conv_dgrad_attributes> {};
struct Conv_wgrad_attributes : Convolution_attributes<Conv_wgrad_attributes> {};

struct Pointwise_attributes {
  PointwiseMode_t mode = PointwiseMode_t::ADD;
  Pointwise_attributes& set_mode(PointwiseMode_t value) { return mode = value, *this; }
};

// One of cuDNN's algorithms for a graph.
struct Engine {
  std::vector<NumericalNote_t> notes;
  bool can_be_built = true;
  bool is_compiled = false;  // at run time
  bool is_selected = true, is_built = false;

  bool has(NumericalNote_t note) const { return std::find(notes.begin(), notes.end(), note) != notes.end(); }
};

// One convolution and the operations on its result, or one attention.
class Graph {
 public:
  Graph& set_io_data_type(DataType_t) { return *this; }
  Graph& set_intermediate_data_type(DataType_t type) { return is_float_inside_ = type == DataType_t::FLOAT, *this; }
  Graph& set_compute_data_type(DataType_t type) {
    return is_float_inside_ = is_float_inside_ && type == DataType_t::FLOAT, *this;
  }

  Tensor tensor(const Tensor_attributes& attributes);
  Tensor conv_fprop(const Tensor& x, const Tensor& weight, const Conv_fprop_attributes& attributes);
  Tensor conv_dgrad(const Tensor& y, const Tensor& weight, const Conv_dgrad_attributes& attributes);
  Tensor conv_wgrad(const Tensor& y, const Tensor& x, const Conv_wgrad_attributes& attributes);
  Tensor pointwise(const Tensor& in, const Tensor& addend, const Pointwise_attributes& attributes);
  Tensor pointwise(const Tensor& in, const Pointwise_attributes& attributes);
  std::array<Tensor, 2> sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const SDPA_attributes& attributes);
  std::array<Tensor, 3> sdpa_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& y,
                                      const Tensor& y_grad, const Tensor& stats,
                                      const SDPA_backward_attributes& attributes);

  error_t validate();
  error_t build_operation_graph(cudnnHandle_t handle);
  error_t create_execution_plans(std::initializer_list<HeurMode_t> modes);
  Graph& deselect_workspace_greater_than(std::int64_t bytes);
  Graph& deselect_numeric_notes(const std::vector<NumericalNote_t>& notes);
  error_t check_support();
  std::int64_t get_execution_plan_count() const { return static_cast<std::int64_t>(engines_.size()); }
  error_t get_plan_name_at_index(std::int64_t index, std::string& name) const;
  error_t get_plan_name(std::string& name) const;
  error_t get_behavior_notes_for_plan_at_index(std::int64_t index, std::vector<BehaviorNote_t>& notes) const;
  error_t build_plan_at_index(std::int64_t index);
  error_t build_plans(BuildPlanPolicy_t policy);
  std::int64_t get_autotune_workspace_size() const;
  error_t autotune(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers, void* workspace);
  error_t get_workspace_size(std::int64_t& bytes) const;
  error_t execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers, void* workspace) const;

 private:
  static constexpr std::size_t kNone = SIZE_MAX;

  Tensor convolution(Tensor x, Tensor weight, Tensor y, const Tensor& result, const Geometry& geometry);
  void compute(const Engine& engine, int execution, std::unordered_map<std::int64_t, void*>& pointers) const;

  Tensor x_, weight_, y_, bias_;
  Tensor convolved_, output_;  // the same, unless an operation follows
  Geometry geometry_;
  std::int64_t most_workspace_ = 0;
  bool clamps_ = false, is_float_inside_ = false;
  std::vector<Engine> engines_;  // in the heuristics' order
  std::size_t chosen_ = kNone;   // position of the engine that executes
  mutable int executions_ = 0;
  std::shared_ptr<const Attention> attention_;  // null: a convolution
};

}  // namespace graph
}  // namespace cudnn_frontend
// NOLINTEND(readability-identifier-naming)
