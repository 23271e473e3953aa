// Convolutions by cuDNN's graphs: bias and ReLU are part of forward's where cuDNN can. A graph is built once a shape,
// on the first call, from those of cuDNN's engines that give the same bits every time, stay within the workspace limit
// and keep float32 (at least TF32, where that was asked for). Where there is none: with a larger workspace; in float32
// what has 16 bits; else as a product, see columns.h, or in groups by kernels of ours, see grouped.h. Images whose two
// sides are padded unlike are padded by a kernel of ours. cudnn-frontend asks every ReLU to let NaN through.
#include <cudnn_frontend.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/padded_images.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Sizes = std::vector<std::int64_t>;

enum class Direction { kForward, kData, kWeights };

struct Key {
  Direction direction;
  Conv2dShape shape;
  DType type;
  bool bias, relu;
  int device;
  bool operator<(const Key& other) const {
    if (const int order = std::memcmp(&shape, &other.shape, sizeof shape); order != 0) return order < 0;
    return std::tuple(direction, type, bias, relu, device) <
           std::tuple(other.direction, other.type, other.bias, other.relu, other.device);
  }
};
static_assert(std::has_unique_object_representations_v<Conv2dShape>);

std::string text_of(const Key& key) {
  const Conv2dShape& s = key.shape;
  return fmt::format("the {} convolution of ({}, {}, {}, {}) with ({}, {}, {}, {}), stride ({}, {}), {}",
                     name_of(key.type), s.batch, s.in_height, s.in_width, s.in_channels, s.out_channels,
                     s.kernel_height, s.kernel_width, s.group_channels(), s.stride_height, s.stride_width,
                     key.direction == Direction::kForward ? "forward"
                     : key.direction == Direction::kData  ? "gradient of the input"
                                                          : "gradient of the weights");
}

void must(fe::error_t result, const char* step, const Key& key) {
  if (result.is_bad()) throw Error("cuDNN cannot {} {}: {}", step, text_of(key), result.get_message());
}

enum Uid : std::int64_t { kX = 1, kWeight, kBias, kY };

// cuDNN names dimensions N, C, H, W; the strides say that C is innermost.
Sizes nhwc_strides(const Sizes& nchw) { return {nchw[1] * nchw[2] * nchw[3], 1, nchw[1] * nchw[3], nchw[1]}; }

fe::DataType_t data_type(DType type) {
  switch (type) {
    case DType::kFloat32:
      return fe::DataType_t::FLOAT;
    case DType::kFloat16:
      return fe::DataType_t::HALF;
    case DType::kBFloat16:
      return fe::DataType_t::BFLOAT16;
    default:
      throw_no_float(type);
  }
}

Tensor tensor(fe::graph::Graph& graph, Uid uid, const Sizes& nchw, DType type) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim(nchw)
                          .set_stride(nhwc_strides(nchw))
                          .set_data_type(data_type(type)));
}
void is_output(const Tensor& tensor, Uid uid, const Sizes& nchw, DType type) {
  tensor->set_output(true).set_uid(uid).set_dim(nchw).set_stride(nhwc_strides(nchw)).set_data_type(data_type(type));
}

template <typename Attributes>
Attributes with_geometry(const Conv2dShape& s) {
  return Attributes()
      .set_pre_padding({s.pad_top, s.pad_left})
      .set_post_padding({s.pad_bottom, s.pad_right})
      .set_stride({s.stride_height, s.stride_width})
      .set_dilation({1, 1});
}

// What an engine must not do. Sums run in float32, of 16 bits as well.
std::vector<fe::NumericalNote_t> barred(DType type) {
  using fe::NumericalNote_t;
  std::vector<NumericalNote_t> notes = {NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (!math_settings().nondeterministic) notes.push_back(NumericalNote_t::NONDETERMINISTIC);
  if (type != DType::kFloat32) return notes;
  notes.push_back(NumericalNote_t::DOWN_CONVERT_INPUTS);  // to 16 bits, which is less than TF32
  if (!math_settings().tf32) notes.push_back(NumericalNote_t::TENSOR_CORE);
  return notes;
}

class Convolution {
 public:
  explicit Convolution(const Key& key) : key_(key) {
    graph_.set_io_data_type(data_type(key.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    describe();
  }

  // Where cuDNN has no way to do it: at which step, and whether more workspace may help.
  struct Failure {
    const char* step = "describe";
    bool may_want_workspace = false;
  };
  fe::error_t build(cudnnHandle_t handle, std::int64_t most_workspace, Failure& failure) {
    failure = {};
    if (const fe::error_t result = graph_.validate(); result.is_bad()) return result;
    failure.step = "take";
    if (const fe::error_t result = graph_.build_operation_graph(handle); result.is_bad()) return result;
    failure.step = "find a way for";
    if (const fe::error_t result = graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
        result.is_bad())
      return result;
    graph_.deselect_workspace_greater_than(most_workspace);
    graph_.deselect_numeric_notes(barred(key_.type));
    failure = {"support", true};
    if (const fe::error_t result = graph_.check_support(); result.is_bad()) return result;
    failure = {"build", true};
    if (math_settings().autotune) build_best();
    // Keeps what is built; builds one if nothing is.
    const fe::error_t result = graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (result.is_good())
      log::debug("cuDNN: engines that remain for {}: {}", text_of(key_), built_.empty() ? chosen() : built_);
    return result;
  }

  void run(std::unordered_map<std::int64_t, void*> pointers, cudnnHandle_t handle, Stream& stream) {
    if (!tuned_ && math_settings().autotune) {
      const Scratch workspace = workspace_of(graph_.get_autotune_workspace_size(), stream);
      must(graph_.autotune(handle, pointers, workspace.as<void>()), "tune", key_);
      log::debug("cuDNN: the fastest engine for {}: {}", text_of(key_), chosen());
    }
    tuned_ = true;
    std::int64_t bytes = 0;
    must(graph_.get_workspace_size(bytes), "size", key_);
    const Scratch workspace = workspace_of(bytes, stream);
    must(graph_.execute(handle, pointers, workspace.as<void>()), "run", key_);
  }

 private:
  Scratch workspace_of(std::int64_t bytes, Stream& stream) const {
    try {
      return Scratch(stream, static_cast<std::size_t>(bytes));
    } catch (const Error& error) {
      throw Error(
          "no {} MiB of workspace for {}: {}; use smaller batches or less memory elsewhere, or lower {} (now {}) or "
          "set {}=0",
          (bytes + (std::int64_t{1} << 20) - 1) >> 20, text_of(key_), error.what(), env::kCudaWorkspace,
          math_settings().workspace_bytes >> 20, env::kCudnnAutotune);
    }
  }

  // Those that heuristics put first: some are compiled when they are built, and all would take seconds a shape.
  void build_best() {
    constexpr int kMeasured = 10;
    const std::int64_t known = graph_.get_execution_plan_count();
    int built = 0;
    for (std::int64_t i = 0; i < known && built < kMeasured; ++i)
      if (graph_.build_plan_at_index(i).is_good()) built_ += (built++ == 0 ? "" : ", ") + name_of(i);
  }

  std::string name_of(std::int64_t engine) const {
    std::string name;
    return graph_.get_plan_name_at_index(engine, name).is_good() ? name : "one without a name";
  }
  std::string chosen() const {
    std::string name;
    return graph_.get_plan_name(name).is_good() ? name : "one without a name";
  }

  void describe() {
    const Conv2dShape& s = key_.shape;
    const Sizes x{s.batch, s.in_channels, s.in_height, s.in_width},
        y{s.batch, s.out_channels, s.out_height, s.out_width};
    const Sizes weight{s.out_channels, s.group_channels(), s.kernel_height,
                       s.kernel_width};  // from which cuDNN knows the groups
    const auto operand = [&](Uid uid, const Sizes& sizes) { return tensor(graph_, uid, sizes, key_.type); };
    switch (key_.direction) {
      case Direction::kForward: {
        auto result = graph_.conv_fprop(operand(kX, x), operand(kWeight, weight),
                                        with_geometry<fe::graph::Conv_fprop_attributes>(s));
        if (key_.bias)
          result = graph_.pointwise(result, operand(kBias, {1, s.out_channels, 1, 1}),
                                    fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
        if (key_.relu)
          result = graph_.pointwise(result, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::RELU_FWD));
        return is_output(result, kY, y, key_.type);
      }
      case Direction::kData:
        return is_output(graph_.conv_dgrad(operand(kY, y), operand(kWeight, weight),
                                           with_geometry<fe::graph::Conv_dgrad_attributes>(s)),
                         kX, x, key_.type);
      case Direction::kWeights:
        return is_output(
            graph_.conv_wgrad(operand(kY, y), operand(kX, x), with_geometry<fe::graph::Conv_wgrad_attributes>(s)),
            kWeight, weight, key_.type);
    }
  }

  Key key_;
  fe::graph::Graph graph_;
  std::string built_;  // names of the engines that are measured
  bool tuned_ = false;
};

// Has cuDNN no engine for it? All else is an error: of the driver, of memory, or ours.
bool has_no_engine(fe::error_t result) {
  using fe::error_code_t;
  const error_code_t code = result.get_code();
  return code == error_code_t::GRAPH_NOT_SUPPORTED || code == error_code_t::HEURISTIC_QUERY_FAILED ||
         code == error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED;
}

// Null when cuDNN has none that is fused like this, or none at all.
std::unique_ptr<Convolution> make(const Key& key, cudnnHandle_t handle) {
  constexpr std::int64_t kLeast = std::int64_t{16} << 20, kMost = std::int64_t{16} << 30;
  const auto wanted = static_cast<std::int64_t>(math_settings().workspace_bytes);
  for (std::int64_t most = wanted;; most = std::max(4 * most, kLeast)) {
    auto made = std::make_unique<Convolution>(key);
    Convolution::Failure failure;
    fe::error_t result = made->build(handle, most, failure);
    if (result.is_good()) {
      if (most > wanted)
        log::info("cuDNN: {} needs up to {} MiB of workspace, more than {}", text_of(key), most >> 20,
                  env::kCudaWorkspace);
      return made;
    }
    if (key.bias || key.relu) return nullptr;
    if (failure.may_want_workspace && most < kMost) continue;
    if (key.type == DType::kFloat32 && !has_no_engine(result)) must(result, failure.step, key);
    log::warn("cuDNN cannot {} {}: {}. It is computed {}, which takes longer", failure.step, text_of(key),
              result.get_message(),
              key.type != DType::kFloat32 ? "in float32"
              : key.shape.groups > 1      ? "without it"
                                          : "by cuBLASLt as a product");
    return nullptr;
  }
}

// By thread: handles are.
Convolution* convolution_for(const Key& key, cudnnHandle_t handle, Stream& stream) {
  thread_local std::map<Key, std::unique_ptr<Convolution>> convolutions;
  const auto found = convolutions.find(key);
  if (found != convolutions.end()) return found->second.get();
  cudaStreamCaptureStatus capture{};
  LOCKSTEP_CUDA(cudaStreamIsCapturing(native(stream), &capture));
  if (capture != cudaStreamCaptureStatusNone)
    throw Error(
        "a convolution of {} images of {} x {} x {} runs for the first time while a graph is captured: cuDNN builds "
        "and measures it then, "
        "which no graph holds. Run the same step before the capture",
        key.shape.batch, key.shape.in_height, key.shape.in_width, key.shape.in_channels);
  return convolutions.emplace(key, make(key, handle)).first->second.get();
}

Index rows_of_y(const Conv2dShape& s) { return s.batch * s.out_height * s.out_width; }
void* plain(const void* pointer) { return const_cast<void*>(pointer); }
OutputView writable(In view) { return {plain(view.data), view.dtype, view.shape}; }

// x, weight, y, all of one type: the one that the direction computes is written, the others are read. It and
// run_in_float32() call each other.
void run(Direction direction, const Conv2dShape& shape, In x, In weight, In bias, bool relu_after, In y,
         Stream& stream);

void run_in_float32(Direction direction, const Conv2dShape& shape, In x, In weight, In y, Stream& stream) {
  struct Wide {
    Wide(In narrow, bool is_result, Stream& stream)
        : narrow(writable(narrow)),
          is_result(is_result),
          memory(stream, static_cast<std::size_t>(narrow.count()) * sizeof(float)),
          floats(memory.as<float>(), narrow.shape) {}
    OutputView narrow;
    bool is_result;
    Scratch memory;
    OutputView floats;
  };
  const Wide all[] = {{x, direction == Direction::kData, stream},
                      {weight, direction == Direction::kWeights, stream},
                      {y, direction == Direction::kForward, stream}};
  for (const Wide& each : all)
    if (!each.is_result) convert(each.narrow, each.floats, stream);
  run(direction, shape, all[0].floats, all[1].floats, {}, false, all[2].floats, stream);
  for (const Wide& each : all)
    if (each.is_result) convert(each.floats, each.narrow, stream);
}

void run_in_groups(Direction direction, const Conv2dShape& shape, In x, In weight, In y, Stream& stream) {
  switch (direction) {
    case Direction::kForward:
      return grouped_forward(shape, x.floats(), weight.floats(), writable(y).floats(), stream);
    case Direction::kData:
      return grouped_backward_data(shape, y.floats(), weight.floats(), writable(x).floats(), stream);
    case Direction::kWeights:
      return grouped_backward_weights(shape, x.floats(), y.floats(), writable(weight).floats(), stream);
  }
}

void run_as_product(Direction direction, const Conv2dShape& shape, In x, In weight, In y, Stream& stream) {
  if (shape.groups > 1) return run_in_groups(direction, shape, x, weight, y, stream);
  switch (direction) {
    case Direction::kForward:
      return product_forward(shape, x.floats(), weight.floats(), writable(y).floats(), stream);
    case Direction::kData:
      return product_backward_data(shape, y.floats(), weight.floats(), writable(x).floats(), stream);
    case Direction::kWeights:
      return product_backward_weights(shape, x.floats(), y.floats(), writable(weight).floats(), stream);
  }
}

void run(Direction direction, const Conv2dShape& shape, In x, In weight, In bias, bool relu_after, In y,
         Stream& stream) {
  for (const InputView& other : {weight, bias, y}) require_type(x.dtype, other);
  Key key{direction, shape, x.dtype, static_cast<bool>(bias), relu_after, 0};
  const cudnnHandle_t handle = cudnn_handle(stream);  // the stream's device is the thread's from here on
  LOCKSTEP_CUDA(cudaGetDevice(&key.device));
  if (Convolution* const known = convolution_for(key, handle, stream)) {
    std::unordered_map<std::int64_t, void*> pointers{
        {kX, plain(x.data)}, {kWeight, plain(weight.data)}, {kY, plain(y.data)}};
    if (bias) pointers.emplace(kBias, plain(bias.data));
    return known->run(std::move(pointers), handle, stream);
  }
  if (!key.bias && !key.relu)
    return key.type == DType::kFloat32 ? run_as_product(direction, shape, x, weight, y, stream)
                                       : run_in_float32(direction, shape, x, weight, y, stream);
  run(direction, shape, x, weight, {}, false, y, stream);
  if (bias) add_bias(writable(y), bias, stream);
  if (relu_after) relu(y, writable(y), stream);
}

void conv2d(const Conv2dShape& shape, In x, In weight, In bias, bool relu_after, Out y, Stream& stream) {
  if (rows_of_y(shape) == 0) return;
  if (!is_padded_unlike(shape)) return run(Direction::kForward, shape, x, weight, bias, relu_after, y, stream);
  PaddedImages images(x.dtype, shape, stream);
  images.put_in(x);
  run(Direction::kForward, images.shape(), images.view(), weight, bias, relu_after, y, stream);
}

// cuDNN writes what is aligned to 16 bytes; all else goes through scratch memory.
void conv2d_backward_data(const Conv2dShape& shape, In y_grad, In weight, Out x_grad, Stream& stream) {
  const Index count = size_of_x(shape);
  if (count == 0) return;
  if (is_padded_unlike(shape)) {
    PaddedImages images(x_grad.dtype, shape, stream);
    run(Direction::kData, images.shape(), images.view(), weight, {}, false, y_grad, stream);
    return images.take_out(x_grad);
  }
  if (!x_grad.accumulate) return run(Direction::kData, shape, x_grad, weight, {}, false, y_grad, stream);
  const Scratch memory(stream, static_cast<std::size_t>(count) * size_of(x_grad.dtype));
  const InputView fresh(memory.as<void>(), x_grad.dtype, x_grad.shape);
  run(Direction::kData, shape, fresh, weight, {}, false, y_grad, stream);
  convert(fresh, x_grad, stream);
}

void gradient_of_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Stream& stream) {
  if (rows_of_y(shape) == 0) {
    if (!weight_grad.accumulate) fill(weight_grad, 0, stream);
    return;
  }
  if (is_padded_unlike(shape)) {
    PaddedImages images(x.dtype, shape, stream);
    images.put_in(x);
    return gradient_of_weights(images.shape(), images.view(), y_grad, weight_grad, stream);
  }
  const bool in_place = x.dtype == DType::kFloat32 && !weight_grad.accumulate &&
                        reinterpret_cast<std::uintptr_t>(weight_grad.floats()) % 16 == 0;
  if (in_place) return run(Direction::kWeights, shape, x, weight_grad, {}, false, y_grad, stream);
  const Scratch memory(stream, static_cast<std::size_t>(weight_grad.count()) * size_of(x.dtype));
  const InputView fresh(memory.as<void>(), x.dtype, weight_grad.shape);
  run(Direction::kWeights, shape, x, fresh, {}, false, y_grad, stream);
  convert(fresh, weight_grad, stream);
}

void conv2d_backward_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad,
                             Stream& stream) {
  gradient_of_weights(shape, x, y_grad, weight_grad, stream);
  if (bias_grad) bias_backward(y_grad, bias_grad, stream);
}

}  // namespace

void use_conv2d(KernelTable& table) {
  table.conv2d = conv2d;
  table.conv2d_backward_data = conv2d_backward_data;
  table.conv2d_backward_weights = conv2d_backward_weights;
}

}  // namespace lockstep::cuda
