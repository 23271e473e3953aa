#include "kernels/cuda/cudnn_convolution.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/engine_tuning.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::cuda {

static_assert(std::has_unique_object_representations_v<Conv2dShape>);

bool ConvolutionKey::operator<(const ConvolutionKey& other) const {
  if (const int order = std::memcmp(&shape, &other.shape, sizeof shape); order != 0) return order < 0;
  return std::tuple(direction, type, bias, relu, device) <
         std::tuple(other.direction, other.type, other.bias, other.relu, other.device);
}

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Sizes = std::vector<std::int64_t>;
using Clock = TuningBudget::Clock;

long long ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

std::string text_of(const ConvolutionKey& key) {
  const Conv2dShape& s = key.shape;
  return fmt::format("the {} convolution of ({}, {}, {}, {}) with ({}, {}, {}, {}), stride ({}, {}){}, {}",
                     name_of(key.type), s.batch, s.in_height, s.in_width, s.in_channels, s.out_channels,
                     s.kernel_height, s.kernel_width, s.group_channels(), s.stride_height, s.stride_width,
                     s.is_dilated() ? fmt::format(", dilation ({}, {})", s.dilation_height, s.dilation_width) : "",
                     key.direction == Direction::kForward ? "forward"
                     : key.direction == Direction::kData  ? "gradient of the input"
                                                          : "gradient of the weights");
}

void must(fe::error_t result, const char* step, const ConvolutionKey& key) {
  if (result.is_bad()) throw Error("cuDNN cannot {} {}: {}", step, text_of(key), result.get_message());
}

enum Uid : std::int64_t { kX = 1, kWeight, kBias, kY };

// cuDNN lists dimensions as N, C, H, W; the strides make C the innermost one.
Sizes nhwc_strides(const Sizes& nchw) { return {nchw[1] * nchw[2] * nchw[3], 1, nchw[1] * nchw[3], nchw[1]}; }

Tensor tensor(fe::graph::Graph& graph, Uid uid, const Sizes& nchw, DType type) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim(nchw)
                          .set_stride(nhwc_strides(nchw))
                          .set_data_type(graph_type(type)));
}
void is_output(const Tensor& tensor, Uid uid, const Sizes& nchw, DType type) {
  tensor->set_output(true).set_uid(uid).set_dim(nchw).set_stride(nhwc_strides(nchw)).set_data_type(graph_type(type));
}

template <typename Attributes> Attributes with_geometry(const Conv2dShape& s) {
  return Attributes()
      .set_pre_padding({s.pad_top, s.pad_left})
      .set_post_padding({s.pad_bottom, s.pad_right})
      .set_stride({s.stride_height, s.stride_width})
      .set_dilation({s.dilation_height, s.dilation_width});
}

// Properties that an engine must not have. Sums are computed in float32 for 16-bit types, too.
std::vector<fe::NumericalNote_t> barred(DType type) {
  using fe::NumericalNote_t;
  std::vector<NumericalNote_t> notes = {NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (!math_settings().nondeterministic) notes.push_back(NumericalNote_t::NONDETERMINISTIC);
  if (type != DType::kFloat32) return notes;
  notes.push_back(NumericalNote_t::DOWN_CONVERT_INPUTS);  // to 16 bits, which is less than TF32
  if (!math_settings().tf32_convolutions) notes.push_back(NumericalNote_t::TENSOR_CORE);
  return notes;
}

class Convolution {
 public:
  explicit Convolution(const ConvolutionKey& key) : key_(key) {
    graph_.set_io_data_type(graph_type(key.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    describe();
  }

  // If cuDNN has no engine: the step that failed, and whether more workspace may help.
  struct Failure {
    const char* step = "describe";
    bool may_want_workspace = false;
  };
  fe::error_t build(cudnnHandle_t handle, std::int64_t most_workspace, Failure& failure) {
    failure = {};
    if (const fe::error_t result = graph_.validate(); result.is_bad()) return result;
    failure.step = "take";
    if (const fe::error_t result = graph_.build_operation_graph(handle); result.is_bad()) return result;
    failure.step = "find an engine for";
    if (const fe::error_t result = graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
        result.is_bad())
      return result;
    graph_.deselect_workspace_greater_than(most_workspace);
    graph_.deselect_numeric_notes(barred(key_.type));
    failure = {"support", true};
    if (const fe::error_t result = graph_.check_support(); result.is_bad()) return result;
    failure = {"build", true};
    const auto start = Clock::now();
    const fe::error_t result = graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (result.is_good()) log_built(chosen(), start);
    return result;
  }

  // Queues the convolution. In the call with the same shape that engine_tuning.h names it first measures engines,
  // unless that is switched off, the stream is being captured, or the time for it is used up.
  void run(std::unordered_map<std::int64_t, void*> pointers, cudnnHandle_t handle, Stream& stream) {
    if (!is_tuned_ && math_settings().autotune && ++calls_ >= kCallThatTunes && !stream.is_capturing()) {
      is_tuned_ = true;
      if (!tuning_budget().is_spent()) tune(pointers, handle, stream);
    }
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

  void tune(std::unordered_map<std::int64_t, void*>& pointers, cudnnHandle_t handle, Stream& stream) {
    const auto start = Clock::now();
    if (build_others() > 1) {
      try {
        const Scratch workspace = workspace_of(graph_.get_autotune_workspace_size(), stream);
        must(graph_.autotune(handle, pointers, workspace.as<void>()), "tune", key_);
      } catch (const Error& error) {  // there may be no memory for the larger ones
        log::warn("cuDNN: {} is not tuned, and computed by cuDNN's first choice: {}", text_of(key_), error.what());
        must(graph_.build_plan_at_index(first_), "return to the first engine for", key_);
      }
    }
    log::debug("cuDNN: the fastest engine for {}: {}, found in {} ms", text_of(key_), chosen(), ms_since(start));
    if (tuning_budget().spend(Clock::now() - start))
      log::info(
          "cuDNN: {} s were spent on measuring engines; convolutions that are new from now on use its first choice ({} "
          "is the limit)",
          math_settings().tuning_seconds, env::kCudnnTuning);
  }

  // Builds the engines that heuristics put first, and returns the number of those that are built. Some are compiled at
  // run time, which takes seconds, so that only one of these is built.
  int build_others() {
    const std::int64_t known = graph_.get_execution_plan_count();
    bool has_compiled = false;
    int built = 0;
    first_ = -1;
    for (std::int64_t i = 0; i < known && built < kMeasuredEngines && !tuning_budget().is_spent(); ++i) {
      const bool compiles = is_compiled_at_run_time(i);
      const auto start = Clock::now();
      if ((compiles && has_compiled) || graph_.build_plan_at_index(i).is_bad()) continue;
      if (first_ < 0) first_ = i;  // as the heuristics chose it: the first one that can be built
      log_built(name_of(i), start);
      has_compiled = has_compiled || compiles;
      ++built;
    }
    return built;
  }

  bool is_compiled_at_run_time(std::int64_t engine) const {
    std::vector<fe::BehaviorNote_t> notes;
    return graph_.get_behavior_notes_for_plan_at_index(engine, notes).is_good() &&
           std::find(notes.begin(), notes.end(), fe::BehaviorNote_t::RUNTIME_COMPILATION) != notes.end();
  }

  void log_built(const std::string& engine, Clock::time_point start) const {
    log::debug("cuDNN: built {} in {} ms for {}", engine, ms_since(start), text_of(key_));
  }

  std::string name_of(std::int64_t engine) const {
    std::string name;
    return graph_.get_plan_name_at_index(engine, name).is_good() ? name : "unnamed";
  }
  std::string chosen() const {
    std::string name;
    return graph_.get_plan_name(name).is_good() ? name : "unnamed";
  }

  void describe() {
    const Conv2dShape& s = key_.shape;
    const Sizes x{s.batch, s.in_channels, s.in_height, s.in_width},
        y{s.batch, s.out_channels, s.out_height, s.out_width};
    // cuDNN derives the groups from these.
    const Sizes weight{s.out_channels, s.group_channels(), s.kernel_height, s.kernel_width};
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

  ConvolutionKey key_;
  fe::graph::Graph graph_;
  int calls_ = 0;
  bool is_tuned_ = false;
  std::int64_t first_ = -1;  // while engines are measured: position of the heuristics' choice
};

// Null if cuDNN has no engine with this fusion, or none at all. cudnn-frontend configures every ReLU to keep NaN.
std::unique_ptr<Convolution> make(const ConvolutionKey& key, cudnnHandle_t handle) {
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
    if (key.type == DType::kFloat32 && !is_without_engine(result)) must(result, failure.step, key);
    log::warn("cuDNN cannot {} {}: {}. It is computed {} instead, which takes longer", failure.step, text_of(key),
              result.get_message(),
              key.type != DType::kFloat32 ? "in float32"
              : key.shape.groups > 1      ? "by a plain kernel"
                                          : "as a matrix product by cuBLASLt");
    return nullptr;
  }
}

// Cached per thread, because handles are. Null: cuDNN has no engine.
Convolution* convolution_for(const ConvolutionKey& key, cudnnHandle_t handle, Stream& stream) {
  constexpr std::size_t kMostPlans = 512;
  thread_local RecentGraphs<ConvolutionKey, Convolution> convolutions(kMostPlans);
  return convolutions.get(
      key, stream, [&] { return make(key, handle); },
      [&] {
        return fmt::format("a convolution of {} images of {} x {} x {}", key.shape.batch, key.shape.in_height,
                           key.shape.in_width, key.shape.in_channels);
      });
}

// An operand at an address that cuDNN takes: itself, or scratch memory in place of one that is not aligned.
class AlignedOperand {
 public:
  AlignedOperand(In given, Stream& stream) : given_(given), aligned_(given), stream_(stream) {
    if (!given || is_aligned_for_cudnn(given.data)) return;
    memory_.emplace(stream, static_cast<std::size_t>(given.count()) * size_of(given.dtype));
    aligned_.data = memory_->as<void>();
  }
  void* data() const { return const_cast<void*>(aligned_.data); }
  void copy_in() const { copy(given_, aligned_); }
  void copy_out() const { copy(aligned_, given_); }

 private:
  void copy(In from, In to) const {
    if (memory_) convert(from, {const_cast<void*>(to.data), to.dtype, to.shape}, stream_);
  }

  In given_;
  InputView aligned_;
  Stream& stream_;
  std::optional<Scratch> memory_;
};

}  // namespace

bool run_by_cudnn(ConvolutionKey key, In x, In weight, In bias, In y, Stream& stream) {
  const cudnnHandle_t handle = cudnn_handle(stream);
  LOCKSTEP_CUDA(cudaGetDevice(&key.device));
  Convolution* const convolution = convolution_for(key, handle, stream);
  if (convolution == nullptr) return false;
  const AlignedOperand all[] = {{x, stream}, {weight, stream}, {y, stream}, {bias, stream}};
  const AlignedOperand& result = all[key.direction == Direction::kForward ? 2
                                     : key.direction == Direction::kData  ? 0
                                                                          : 1];
  for (const AlignedOperand& each : all)
    if (&each != &result) each.copy_in();
  std::unordered_map<std::int64_t, void*> pointers{{kX, all[0].data()}, {kWeight, all[1].data()}, {kY, all[2].data()}};
  if (bias) pointers.emplace(kBias, all[3].data());
  convolution->run(std::move(pointers), handle, stream);
  result.copy_out();
  return true;
}

}  // namespace lockstep::cuda
