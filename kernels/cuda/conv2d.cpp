// Convolutions by cuDNN's graphs: bias and relu are part of forward's. A graph is built once a shape, on the first call, from those of
// cuDNN's engines that give the same bits every time, stay within the workspace limit and, unless TF32 was asked for, keep float32.
#include <cudnn_frontend.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Sizes = std::vector<std::int64_t>;

enum class Direction { kForward, kData, kWeights };

struct Key {
  Direction direction;
  Conv2dShape shape;
  bool bias, relu;
  int device;
  bool operator<(const Key& other) const {
    if (const int order = std::memcmp(&shape, &other.shape, sizeof shape); order != 0) return order < 0;
    return std::tuple(direction, bias, relu, device) < std::tuple(other.direction, other.bias, other.relu, other.device);
  }
};
static_assert(std::has_unique_object_representations_v<Conv2dShape>);

void must(fe::error_t result, const char* step, const Key& key) {
  if (result.is_good()) return;
  const Conv2dShape& s = key.shape;
  throw Error("cuDNN cannot {} the convolution of ({}, {}, {}, {}) with ({}, {}, {}, {}), stride ({}, {}), {}: {}", step, s.batch,
              s.in_height, s.in_width, s.in_channels, s.out_channels, s.kernel_height, s.kernel_width, s.in_channels, s.stride_height,
              s.stride_width,
              key.direction == Direction::kForward ? "forward"
              : key.direction == Direction::kData  ? "gradient of the input"
                                                   : "gradient of the weights",
              result.get_message());
}

enum Uid : std::int64_t { kX = 1, kWeight, kBias, kY };

// cuDNN names dimensions N, C, H, W; the strides say that C is innermost.
Sizes nhwc_strides(const Sizes& nchw) { return {nchw[1] * nchw[2] * nchw[3], 1, nchw[1] * nchw[3], nchw[1]}; }

Tensor tensor(fe::graph::Graph& graph, Uid uid, const Sizes& nchw) {
  return graph.tensor(
      fe::graph::Tensor_attributes().set_uid(uid).set_dim(nchw).set_stride(nhwc_strides(nchw)).set_data_type(fe::DataType_t::FLOAT));
}
void is_output(const Tensor& tensor, Uid uid, const Sizes& nchw) {
  tensor->set_output(true).set_uid(uid).set_dim(nchw).set_stride(nhwc_strides(nchw)).set_data_type(fe::DataType_t::FLOAT);
}

template <typename Attributes>
Attributes with_geometry(const Conv2dShape& s) {
  return Attributes()
      .set_pre_padding({s.pad_top, s.pad_left})
      .set_post_padding({s.pad_bottom, s.pad_right})
      .set_stride({s.stride_height, s.stride_width})
      .set_dilation({1, 1});
}

class Convolution {
 public:
  Convolution(const Key& key, cudnnHandle_t handle) : key_(key) {
    graph_.set_io_data_type(fe::DataType_t::FLOAT)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    describe();
    must(graph_.validate(), "describe", key);
    must(graph_.build_operation_graph(handle), "take", key);
    must(graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}), "find a way for", key);
    graph_.deselect_workspace_greater_than(static_cast<std::int64_t>(math_settings().workspace_bytes));
    graph_.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    if (!math_settings().tf32) graph_.deselect_numeric_notes({fe::NumericalNote_t::TENSOR_CORE, fe::NumericalNote_t::DOWN_CONVERT_INPUTS});
    must(graph_.check_support(), "support", key);
    must(graph_.build_plans(math_settings().autotune ? fe::BuildPlanPolicy_t::ALL : fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), "build",
         key);
  }

  void run(std::unordered_map<std::int64_t, void*> pointers, cudnnHandle_t handle, Stream& stream) {
    if (!tuned_ && math_settings().autotune) {
      const Scratch workspace(stream, static_cast<std::size_t>(graph_.get_autotune_workspace_size()));
      must(graph_.autotune(handle, pointers, workspace.as<void>()), "tune", key_);
    }
    tuned_ = true;
    std::int64_t bytes = 0;
    must(graph_.get_workspace_size(bytes), "size", key_);
    const Scratch workspace(stream, static_cast<std::size_t>(bytes));
    must(graph_.execute(handle, pointers, workspace.as<void>()), "run", key_);
  }

 private:
  void describe() {
    const Conv2dShape& s = key_.shape;
    const Sizes x{s.batch, s.in_channels, s.in_height, s.in_width}, y{s.batch, s.out_channels, s.out_height, s.out_width};
    const Sizes weight{s.out_channels, s.in_channels, s.kernel_height, s.kernel_width};
    switch (key_.direction) {
      case Direction::kForward: {
        auto result =
            graph_.conv_fprop(tensor(graph_, kX, x), tensor(graph_, kWeight, weight), with_geometry<fe::graph::Conv_fprop_attributes>(s));
        if (key_.bias)
          result = graph_.pointwise(result, tensor(graph_, kBias, {1, s.out_channels, 1, 1}),
                                    fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
        if (key_.relu) result = graph_.pointwise(result, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::RELU_FWD));
        return is_output(result, kY, y);
      }
      case Direction::kData:
        return is_output(
            graph_.conv_dgrad(tensor(graph_, kY, y), tensor(graph_, kWeight, weight), with_geometry<fe::graph::Conv_dgrad_attributes>(s)),
            kX, x);
      case Direction::kWeights:
        return is_output(
            graph_.conv_wgrad(tensor(graph_, kY, y), tensor(graph_, kX, x), with_geometry<fe::graph::Conv_wgrad_attributes>(s)), kWeight,
            weight);
    }
  }

  Key key_;
  fe::graph::Graph graph_;
  bool tuned_ = false;
};

void run(Direction direction, const Conv2dShape& shape, bool relu, std::unordered_map<std::int64_t, void*> pointers, Stream& stream) {
  thread_local std::map<Key, std::unique_ptr<Convolution>> convolutions;
  Key key{direction, shape, pointers.count(kBias) != 0, relu, 0};
  LOCKSTEP_CUDA(cudaGetDevice(&key.device));
  const cudnnHandle_t handle = cudnn_handle(stream);
  auto& convolution = convolutions[key];
  if (!convolution) convolution = std::make_unique<Convolution>(key, handle);
  convolution->run(std::move(pointers), handle, stream);
}

void* plain(const float* pointer) { return const_cast<float*>(pointer); }
Index size_of_x(const Conv2dShape& s) { return s.batch * s.in_height * s.in_width * s.in_channels; }
Index size_of_weight(const Conv2dShape& s) { return s.out_channels * s.kernel_height * s.kernel_width * s.in_channels; }
Index rows_of_y(const Conv2dShape& s) { return s.batch * s.out_height * s.out_width; }

// cuDNN writes; what is to be added to goes through scratch memory.
template <typename Write>
void write_or_add(float* out, Index count, bool accumulate, Stream& stream, Write&& write) {
  if (!accumulate) return write(out);
  const Scratch fresh(stream, static_cast<std::size_t>(count) * sizeof(float));
  write(fresh.as<float>());
  cuda::accumulate(out, fresh.as<const float>(), count, stream);
}

}  // namespace

void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream& stream) {
  std::unordered_map<std::int64_t, void*> pointers{{kX, plain(x)}, {kWeight, plain(weight)}, {kY, y}};
  if (bias != nullptr) pointers.emplace(kBias, plain(bias));
  if (rows_of_y(shape) > 0) run(Direction::kForward, shape, relu, std::move(pointers), stream);
}

void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate,
                          Stream& stream) {
  if (size_of_x(shape) == 0) return;
  write_or_add(x_grad, size_of_x(shape), accumulate, stream, [&](float* out) {
    run(Direction::kData, shape, false, {{kX, out}, {kWeight, plain(weight)}, {kY, plain(y_grad)}}, stream);
  });
}

void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  const Index count = size_of_weight(shape);
  if (rows_of_y(shape) == 0) {
    if (!accumulate_weight) fill(weight_grad, 0, count, stream);
  } else {
    write_or_add(weight_grad, count, accumulate_weight, stream, [&](float* out) {
      run(Direction::kWeights, shape, false, {{kX, plain(x)}, {kWeight, out}, {kY, plain(y_grad)}}, stream);
    });
  }
  if (bias_grad != nullptr) bias_backward(y_grad, bias_grad, rows_of_y(shape), shape.out_channels, accumulate_bias, stream);
}

}  // namespace lockstep::cuda
