#include "tests/kernels/emulated_cuda/cudnn_frontend.h"

#include <cstring>

#include "tests/kernels/emulated_cuda/elements.h"
#include "tests/kernels/emulated_cuda/table.h"

namespace cudnn_frontend::graph {

namespace {

using emulated_cuda::read_element;
using emulated_cuda::write_element;

constexpr auto kWorkspace = static_cast<std::int64_t>(emulated_cuda::kWorkspace);
constexpr std::int64_t kLargeWorkspace = std::int64_t{1} << 30;

std::int64_t count_of(const Tensor_attributes& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.dim) count *= size;
  return count;
}

lockstep::DType dtype_of(const Tensor_attributes& tensor) {
  return tensor.type == DataType_t::FLOAT  ? lockstep::DType::kFloat32
         : tensor.type == DataType_t::HALF ? lockstep::DType::kFloat16
                                           : lockstep::DType::kBFloat16;
}

// The tensor's values in the order of memory. A tensor here has no gaps, so the indices are those below its count.
std::vector<float> values_of(const Tensor_attributes& tensor, const void* data) {
  std::vector<float> values(static_cast<std::size_t>(count_of(tensor)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = read_element(dtype_of(tensor), data, i);
  return values;
}

bool is_dense(const Tensor_attributes& tensor) {
  if (tensor.dim.size() != 4 || tensor.stride.size() != 4) return false;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    if (tensor.dim[d] < 1) return false;
    last += (tensor.dim[d] - 1) * tensor.stride[d];
  }
  return last == count_of(tensor) - 1;
}

std::size_t index_of(const Tensor_attributes& tensor, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return static_cast<std::size_t>(a * tensor.stride[0] + b * tensor.stride[1] + c * tensor.stride[2] +
                                  d * tensor.stride[3]);
}

void round_to_bfloat16(std::vector<float>& values) {
  for (float& value : values) value = lockstep::widen(lockstep::narrow_bfloat16(value));
}

// Rounds float32 inputs as an engine does before it multiplies them.
void round_inputs(const Engine& engine, std::vector<float>& values) {
  if (engine.has(NumericalNote_t::DOWN_CONVERT_INPUTS)) return round_to_bfloat16(values);
  if (!engine.has(NumericalNote_t::TENSOR_CORE)) return;
  for (float& value : values) value = emulated_cuda::round_to_tf32(value);
}

// Calls `product(x, weight, y)` with the indices of the values of each product that a convolution sums.
template <typename Product> void for_each_product(const Tensor_attributes& x, const Tensor_attributes& weight,
                                                  const Tensor_attributes& y, const Geometry& geometry,
                                                  Product&& product) {
  const std::int64_t filters = weight.dim[0] / (x.dim[1] / weight.dim[1]);  // filters per group
  for (std::int64_t n = 0; n < y.dim[0]; ++n)
    for (std::int64_t p = 0; p < y.dim[2]; ++p)
      for (std::int64_t q = 0; q < y.dim[3]; ++q)
        for (std::int64_t r = 0; r < weight.dim[2]; ++r)
          for (std::int64_t s = 0; s < weight.dim[3]; ++s) {
            const std::int64_t row = p * geometry.stride[0] - geometry.pre[0] + r * geometry.dilation[0],
                               column = q * geometry.stride[1] - geometry.pre[1] + s * geometry.dilation[1];
            if (row < 0 || row >= x.dim[2] || column < 0 || column >= x.dim[3]) continue;
            for (std::int64_t k = 0; k < weight.dim[0]; ++k)
              for (std::int64_t c = 0; c < weight.dim[1]; ++c)
                product(index_of(x, n, k / filters * weight.dim[1] + c, row, column), index_of(weight, k, c, r, s),
                        index_of(y, n, k, p, q));
          }
}

}  // namespace

Tensor Graph::tensor(const Tensor_attributes& attributes) { return std::make_shared<Tensor_attributes>(attributes); }

Tensor Graph::convolution(Tensor x, Tensor weight, Tensor y, const Tensor& result, const Geometry& geometry) {
  x_ = std::move(x), weight_ = std::move(weight), y_ = std::move(y);
  convolved_ = output_ = result;
  geometry_ = geometry;
  return result;
}
Tensor Graph::conv_fprop(const Tensor& x, const Tensor& weight, const Conv_fprop_attributes& attributes) {
  const auto y = std::make_shared<Tensor_attributes>();
  return convolution(x, weight, y, y, attributes);
}
Tensor Graph::conv_dgrad(const Tensor& y, const Tensor& weight, const Conv_dgrad_attributes& attributes) {
  const auto x = std::make_shared<Tensor_attributes>();
  return convolution(x, weight, y, x, attributes);
}
Tensor Graph::conv_wgrad(const Tensor& y, const Tensor& x, const Conv_wgrad_attributes& attributes) {
  const auto weight = std::make_shared<Tensor_attributes>();
  return convolution(x, weight, y, weight, attributes);
}
Tensor Graph::pointwise(const Tensor&, const Tensor& addend, const Pointwise_attributes&) {
  bias_ = addend;
  return output_ = std::make_shared<Tensor_attributes>();
}
Tensor Graph::pointwise(const Tensor&, const Pointwise_attributes&) {
  clamps_ = true;
  return output_ = std::make_shared<Tensor_attributes>();
}

std::array<Tensor, 2> Graph::sdpa(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const SDPA_attributes& attributes) {
  attention_ = std::make_shared<const Attention>(q, k, v, attributes);
  return {attention_->y(), attention_->stats()};
}
std::array<Tensor, 3> Graph::sdpa_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& y,
                                           const Tensor& y_grad, const Tensor& stats,
                                           const SDPA_backward_attributes& attributes) {
  attention_ = std::make_shared<const Attention>(q, k, v, y, y_grad, stats, attributes);
  return {attention_->q_grad(), attention_->k_grad(), attention_->v_grad()};
}

error_t Graph::validate() {
  if (attention_) return is_float_inside_ ? attention_->validate() : error_t("sums that are not float");
  if (!output_ || !output_->is_output || !is_float_inside_) return error_t("no output, or sums that are not float");
  if (convolved_ != output_)
    convolved_->dim = output_->dim, convolved_->stride = output_->stride;  // a virtual tensor: inferred
  for (const Tensor& each : {x_, weight_, y_, output_})
    if (!is_dense(*each)) return error_t("a tensor with gaps, or without elements");
  if (geometry_.pre != geometry_.post) return error_t("two sides with different padding");
  for (const std::size_t d : {std::size_t{2}, std::size_t{3}}) {
    const std::int64_t window = (weight_->dim[d] - 1) * geometry_.dilation[d - 2] + 1;
    const std::int64_t reach = x_->dim[d] + geometry_.pre[d - 2] + geometry_.post[d - 2] - window;
    if (reach < 0 || y_->dim[d] != reach / geometry_.stride[d - 2] + 1)
      return error_t("y does not have the convolution's size");
  }
  // The number of groups is how often the filters' channels fit into the image's.
  const std::int64_t groups = x_->dim[1] / weight_->dim[1];
  if (y_->dim[0] != x_->dim[0] || y_->dim[1] != weight_->dim[0] || x_->dim[1] != groups * weight_->dim[1] ||
      y_->dim[1] % groups != 0)
    return error_t("other channels");
  if (bias_ && bias_->dim != Sizes{1, y_->dim[1], 1, 1}) return error_t("a bias that does not broadcast");
  return {};
}
error_t Graph::build_operation_graph(cudnnHandle_t) {
  if (attention_) return attention_->build_operation_graph();
  if (weight_->dim[3] == 11)
    return error_t("cudnnFinalize failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED",
                   error_code_t::CUDNN_BACKEND_API_FAILED);
  return weight_->dim[3] == 13 ? error_t("the driver is broken", error_code_t::CUDA_API_FAILED) : error_t();
}
error_t Graph::create_execution_plans(std::initializer_list<HeurMode_t> modes) {
  using Note = NumericalNote_t;
  if (attention_) {
    engines_ = {{}};
    return modes.size() == 0 ? error_t("no heuristics") : attention_->create_execution_plans();
  }
  engines_ = {{{Note::TENSOR_CORE, Note::DOWN_CONVERT_INPUTS}},
              {{Note::TENSOR_CORE, Note::REDUCED_PRECISION_REDUCTION}},
              {{Note::NONDETERMINISTIC}},
              {{Note::TENSOR_CORE}},
              {{}, false}};
  const bool keeps_float32 = geometry_.stride[1] != 4 || x_->type != DataType_t::FLOAT;
  if (keeps_float32) engines_.insert(engines_.end(), {{{}, true, true}, {{}, true, true}, {}});
  return modes.size() == 0 ? error_t("no heuristics") : error_t();
}
Graph& Graph::deselect_workspace_greater_than(std::int64_t bytes) { return most_workspace_ = bytes, *this; }
Graph& Graph::deselect_numeric_notes(const std::vector<NumericalNote_t>& notes) {
  for (Engine& engine : engines_)
    for (const NumericalNote_t note : notes) engine.is_selected = engine.is_selected && !engine.has(note);
  return *this;
}
error_t Graph::check_support() {
  if (attention_) return {};
  const auto none = [](const char* why) { return error_t(why, error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED); };
  if (convolved_ != output_ && y_->dim[1] % 2 == 1) return none("no engine fuses the following operation");
  if (x_->type != DataType_t::FLOAT && x_->dim[1] == 5)
    return none("no 16-bit engine supports this number of channels");
  if (most_workspace_ < kWorkspace) return none("no engine works without workspace");
  if (weight_->dim[3] == 7 && most_workspace_ < kLargeWorkspace) return none("no engine works with this workspace");
  const auto is_left = [](const Engine& engine) { return engine.is_selected && engine.can_be_built; };
  return std::any_of(engines_.begin(), engines_.end(), is_left) ? error_t() : none("no engine is left");
}
error_t Graph::get_plan_name_at_index(std::int64_t index, std::string& name) const {
  return name = "emulated_engine_" + std::to_string(index), error_t();
}
error_t Graph::get_plan_name(std::string& name) const {
  return chosen_ != kNone ? get_plan_name_at_index(static_cast<std::int64_t>(chosen_), name)
                          : error_t("no plan is built");
}
error_t Graph::get_behavior_notes_for_plan_at_index(std::int64_t index, std::vector<BehaviorNote_t>& notes) const {
  notes.clear();
  if (engines_[static_cast<std::size_t>(index)].is_compiled) notes.push_back(BehaviorNote_t::RUNTIME_COMPILATION);
  return {};
}
error_t Graph::build_plan_at_index(std::int64_t index) {
  Engine& engine = engines_[static_cast<std::size_t>(index)];
  if (!engine.is_selected) return error_t("this one was deselected");
  if (!engine.can_be_built) return error_t("this one cannot be built");
  if (engine.is_compiled && !engine.is_built) ++lockstep::testing::emulated_calls().compiled_engines;
  engine.is_built = true;
  chosen_ = static_cast<std::size_t>(index);  // as cudnn-frontend does
  return {};
}
error_t Graph::build_plans(BuildPlanPolicy_t) {
  for (std::size_t i = 0; chosen_ == kNone && i < engines_.size(); ++i)
    static_cast<void>(build_plan_at_index(static_cast<std::int64_t>(i)));
  return chosen_ != kNone ? error_t() : error_t("no engine is left");
}
std::int64_t Graph::get_autotune_workspace_size() const { return 2 * kWorkspace; }
error_t Graph::autotune(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers, void* workspace) {
  if (x_->dim[1] == 6) return error_t("no engine could be measured", error_code_t::CUDA_API_FAILED);
  emulated_cuda::on_stream(handle->stream, [workspace] { std::memset(workspace, 0xff, 2 * kWorkspace); });
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (!engines_[i].is_built) continue;
    chosen_ = i;
    for (int repeat = 0; repeat < 2; ++repeat)  // as when measuring: outputs are written more than once
      if (error_t result = execute(handle, pointers, workspace); result.is_bad()) return result;
  }
  return {};
}
error_t Graph::get_workspace_size(std::int64_t& bytes) const {
  return bytes = attention_ ? attention_->workspace() : kWorkspace, error_t();
}

error_t Graph::execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers, void* workspace) const {
  if (chosen_ == kNone) return error_t("no plan is built");
  if (attention_) return attention_->execute(handle, pointers, workspace);
  ++lockstep::testing::emulated_calls().convolutions;
  for (const Tensor& each : {x_, weight_, y_ == convolved_ ? output_ : y_, bias_})
    if (each && (pointers.count(each->uid) == 0 || reinterpret_cast<std::uintptr_t>(pointers[each->uid]) % 16 != 0))
      return error_t("a tensor is missing, or not aligned to 16 bytes");
  // The graph may be destroyed before the stream runs the work.
  emulated_cuda::on_stream(handle->stream, [graph = *this, engine = engines_[chosen_], number = ++executions_, pointers,
                                            workspace]() mutable {
    std::memset(workspace, 0xff, kWorkspace);
    graph.compute(engine, number, pointers);
  });
  return {};
}

void Graph::compute(const Engine& engine, int execution, std::unordered_map<std::int64_t, void*>& pointers) const {
  const auto values = [&](const Tensor& tensor) {
    return tensor == convolved_ ? std::vector<float>(static_cast<std::size_t>(count_of(*tensor)))
                                : values_of(*tensor, pointers[tensor->uid]);
  };
  std::vector<float> x = values(x_), weight = values(weight_), y = values(y_);
  if (x_->type == DataType_t::FLOAT)
    for (std::vector<float>* const each : {&x, &weight, &y}) round_inputs(engine, *each);
  std::vector<float>& result = convolved_ == x_ ? x : convolved_ == weight_ ? weight : y;
  for_each_product(*x_, *weight_, *y_, geometry_, [&](std::size_t i, std::size_t w, std::size_t o) {
    if (convolved_ == x_)
      x[i] += weight[w] * y[o];
    else if (convolved_ == weight_)
      weight[w] += x[i] * y[o];
    else
      y[o] += x[i] * weight[w];
  });
  if (engine.has(NumericalNote_t::REDUCED_PRECISION_REDUCTION)) round_to_bfloat16(result);
  if (engine.has(NumericalNote_t::NONDETERMINISTIC) && !result.empty())
    result.back() += 1e-3F * static_cast<float>(execution);
  if (bias_)
    for (std::int64_t n = 0; n < y_->dim[0]; ++n)
      for (std::int64_t k = 0; k < y_->dim[1]; ++k)
        for (std::int64_t p = 0; p < y_->dim[2]; ++p)
          for (std::int64_t q = 0; q < y_->dim[3]; ++q)
            result[index_of(*y_, n, k, p, q)] +=
                read_element(dtype_of(*bias_), pointers[bias_->uid], static_cast<std::size_t>(k));
  for (std::size_t i = 0; i < result.size(); ++i)
    write_element(dtype_of(*output_), pointers[output_->uid], i, clamps_ && result[i] < 0 ? 0 : result[i]);
}

}  // namespace cudnn_frontend::graph
