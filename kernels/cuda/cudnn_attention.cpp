#include "kernels/cuda/cudnn_attention.h"

#include <array>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/log.h"

namespace lockstep::cuda {

namespace {

namespace fe = cudnn_frontend;

// A graph for a part of an attention; the whole shape determines the strides.
struct AttentionKey {
  bool is_backward;
  AttentionShape shape;
  AttentionPart part;
  AttentionParams params;
  DType type;
  int device;

  auto values() const {
    return std::tuple(is_backward, shape.batch, shape.queries, shape.keys, shape.heads, shape.width, shape.packed,
                      part.samples, part.heads, params.scale, params.causal, type, device);
  }
  bool operator<(const AttentionKey& other) const { return values() < other.values(); }
};

std::string text_of(const AttentionKey& key) {
  const AttentionShape& s = key.shape;
  return fmt::format("the {}{} attention{} of {} x {} queries, {} keys, {} heads of {}{}", name_of(key.type),
                     key.params.causal ? " causal" : "", key.is_backward ? "'s gradient" : "", key.part.samples,
                     s.queries, s.keys, key.part.heads, s.width, s.packed ? ", packed" : "");
}

void require_good(fe::error_t result, const char* step, const AttentionKey& key) {
  if (result.is_bad()) throw Error("cuDNN cannot {} {}: {}", step, text_of(key), result.get_message());
}

enum Role : std::int64_t { kQ = 1, kK, kV, kO, kStats, kOGrad, kQGrad, kKGrad, kVGrad };

class AttentionGraph {
 public:
  explicit AttentionGraph(const AttentionKey& key) : key_(key) {
    graph_.set_io_data_type(graph_type(key.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    key.is_backward ? describe_backward() : describe_forward();
  }

  static constexpr const char* kTake = "take";
  // `step`: what failed, if the result is bad.
  fe::error_t build(cudnnHandle_t handle, const char*& step) {
    step = kTake;
    if (fe::error_t result = graph_.validate(); result.is_bad()) return result;
    if (fe::error_t result = graph_.build_operation_graph(handle); result.is_bad()) return result;
    step = "find an engine for";
    if (fe::error_t result = graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
        result.is_bad())
      return result;
    step = "build";
    if (fe::error_t result = graph_.check_support(); result.is_bad()) return result;
    return graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
  }

  std::int64_t workspace_bytes() {
    std::int64_t bytes = 0;
    require_good(graph_.get_workspace_size(bytes), "size", key_);
    return bytes;
  }
  std::string engine() const {
    std::string name;
    return graph_.get_plan_name(name).is_good() ? name : "unnamed";
  }

  void run(std::unordered_map<std::int64_t, void*> pointers, cudnnHandle_t handle, Stream& stream) {
    const Scratch workspace(stream, static_cast<std::size_t>(workspace_bytes()));
    require_good(graph_.execute(handle, pointers, workspace.as<void>()), "run", key_);
  }

 private:
  using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

  // Describes rows of q, k, v, y or a gradient, `row` elements apart. cuDNN lists dimensions as N, H, T, D.
  template <typename Attributes>
  Attributes& as_rows(Attributes& tensor, Role role, std::int64_t length, std::int64_t row) const {
    tensor.set_uid(role)
        .set_dim({key_.part.samples, key_.part.heads, length, key_.shape.width})
        .set_stride({length * row, key_.shape.width, row, 1})
        .set_data_type(graph_type(key_.type));
    return tensor;
  }
  template <typename Attributes> Attributes& as_statistics(Attributes& tensor) const {
    const std::int64_t heads = key_.part.heads, queries = key_.shape.queries;
    tensor.set_uid(kStats)
        .set_dim({key_.part.samples, heads, queries, 1})
        .set_stride({heads * queries, queries, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }
  Tensor rows(Role role, std::int64_t length, std::int64_t row) {
    fe::graph::Tensor_attributes tensor;
    return graph_.tensor(as_rows(tensor, role, length, row));
  }
  Tensor q() { return rows(kQ, key_.shape.queries, key_.shape.operand_row()); }
  Tensor k() { return rows(kK, key_.shape.keys, key_.shape.operand_row()); }
  Tensor v() { return rows(kV, key_.shape.keys, key_.shape.operand_row()); }

  // A causal query sees the keys up to its own position: the diagonal starts at the top left.
  template <typename Attributes> Attributes with_params() const {
    Attributes attributes;
    attributes.set_attn_scale(key_.params.scale);
    if (key_.params.causal)
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    return attributes;
  }

  void describe_forward() {
    auto attributes = with_params<fe::graph::SDPA_attributes>();
    const auto [y, statistics] = graph_.sdpa(q(), k(), v(), attributes.set_generate_stats(true));
    as_rows(*y, kO, key_.shape.queries, key_.shape.row()).set_output(true);
    as_statistics(*statistics).set_output(true);
  }

  void describe_backward() {
    const AttentionShape& s = key_.shape;
    auto attributes = with_params<fe::graph::SDPA_backward_attributes>();
    fe::graph::Tensor_attributes statistics;
    const Tensor y = rows(kO, s.queries, s.row()), y_grad = rows(kOGrad, s.queries, s.row());
    const auto [q_grad, k_grad, v_grad] =
        graph_.sdpa_backward(q(), k(), v(), y, y_grad, graph_.tensor(as_statistics(statistics)),
                             attributes.set_deterministic_algorithm(!math_settings().nondeterministic));
    as_rows(*q_grad, kQGrad, s.queries, s.operand_row()).set_output(true);
    as_rows(*k_grad, kKGrad, s.keys, s.operand_row()).set_output(true);
    as_rows(*v_grad, kVGrad, s.keys, s.operand_row()).set_output(true);
  }

  AttentionKey key_;
  fe::graph::Graph graph_;
};

std::unique_ptr<AttentionGraph> build_attention(const AttentionKey& key, cudnnHandle_t handle) {
  auto made = std::make_unique<AttentionGraph>(key);
  const char* step = "";
  fe::error_t result = made->build(handle, step);
  if (result.is_good()) {
    log::debug("cuDNN: the engine for {}: {}", text_of(key), made->engine());
    return made;
  }
  if (!is_without_engine(result)) require_good(result, step, key);
  // A graph that cuDNN does not take is refused with a reason; a missing engine may be due to the order of sums.
  const bool may_be_order =
      key.is_backward && !math_settings().nondeterministic &&
      (step != AttentionGraph::kTake || result.get_message().find("eterministic") != std::string::npos);
  log::warn("cuDNN cannot {} {}: {}. A kernel without tensor cores computes it instead, which takes longer{}{}{}", step,
            text_of(key), result.get_message(), may_be_order ? "; " : "",
            may_be_order ? env::kCudnnNondeterministic : "",
            may_be_order ? "=1 also allows algorithms whose sums have no fixed order" : "");
  return nullptr;
}

AttentionGraph* graph_for(const AttentionKey& key, cudnnHandle_t handle, Stream& stream) {
  constexpr std::size_t kMostGraphs = 256;
  thread_local RecentGraphs<AttentionKey, AttentionGraph> graphs(kMostGraphs);
  return graphs.get(
      key, stream, [&] { return build_attention(key, handle); }, [&] { return text_of(key); });
}

// An array of the call: where a sample's and a head's elements begin.
struct AttentionArray {
  Role role;
  const void* data;
  std::int64_t sample, head;
  std::size_t element_bytes;

  void* at(std::int64_t n, std::int64_t h) const {
    const auto offset = static_cast<std::size_t>(n * sample + h * head) * element_bytes;
    return const_cast<std::byte*>(static_cast<const std::byte*>(data) + offset);
  }
};
AttentionArray rows_of(const AttentionShape& s, Role role, const void* data, std::int64_t length, std::int64_t row) {
  return {role, data, length * row, s.width, sizeof(std::uint16_t)};
}
AttentionArray statistics_of(const AttentionShape& s, const void* data) {
  return {kStats, data, s.heads * s.queries, s.queries, sizeof(float)};
}
template <typename View>
auto operands_in_16_bits(const AttentionShape& s, const View& q, const View& k, const View& v) {
  const auto first = [](const View& view) {
    using Byte = std::remove_pointer_t<decltype(view.data)>;
    using Half16 = std::conditional_t<std::is_const_v<Byte>, const std::uint16_t, std::uint16_t>;
    return static_cast<Half16*>(view.data);
  };
  return attention_operands(s, first(q), first(k), first(v));
}

// Splitting by heads costs no speed as long as each part fills the GPU. cuDNN's deterministic
// gradient on Hopper keeps the scores, 2 bytes for each query and key: of so many heads at a time that memory stays
// linear in the number of positions.
std::int64_t most_workspace() { return 4 * static_cast<std::int64_t>(math_settings().workspace_bytes); }

template <std::size_t kArrays>
bool run_attention(AttentionKey key, const std::array<AttentionArray, kArrays>& arrays, Stream& stream) {
  const cudnnHandle_t handle = cudnn_handle(stream);
  LOCKSTEP_CUDA(cudaGetDevice(&key.device));
  AttentionGraph* const whole = graph_for(key, handle, stream);
  if (whole == nullptr) return false;
  const AttentionShape& s = key.shape;
  const AttentionPart most = part_within(most_workspace(), whole->workspace_bytes(), s);
  for (std::int64_t n = 0; n < s.batch; n += most.samples)
    for (std::int64_t h = 0; h < s.heads; h += most.heads) {
      key.part = {std::min(most.samples, s.batch - n), std::min(most.heads, s.heads - h)};
      AttentionGraph* const graph = graph_for(key, handle, stream);
      if (graph == nullptr) return false;
      std::unordered_map<std::int64_t, void*> pointers;
      for (const AttentionArray& array : arrays) pointers.emplace(array.role, array.at(n, h));
      graph->run(std::move(pointers), handle, stream);
    }
  return true;
}

AttentionKey key_of(bool is_backward, const AttentionShape& s, const AttentionParams& params, DType type) {
  return {is_backward, s, {s.batch, s.heads}, params, type, 0};
}

}  // namespace

AttentionPart part_within(std::int64_t most, std::int64_t bytes, const AttentionShape& s) {
  const std::int64_t all = s.batch * s.heads, of_head = std::max<std::int64_t>(1, (bytes + all - 1) / all);
  if (bytes <= most) return {s.batch, s.heads};
  // Multiples of so many samples, or of so many heads of one, begin at aligned addresses in the statistics.
  constexpr auto kAligned = static_cast<std::int64_t>(kCudnnAlignment / sizeof(float));
  const std::int64_t sample_step = kAligned / std::gcd(kAligned, s.heads * s.queries),
                     head_step = kAligned / std::gcd(kAligned, s.queries), heads = most / of_head;
  if (sample_step == 1 && heads < s.heads)
    return {1, std::min(std::max(heads / head_step * head_step, head_step), s.heads)};
  const std::int64_t samples = heads / s.heads / sample_step * sample_step;
  return {std::min(std::max(samples, sample_step), s.batch), s.heads};
}

bool cudnn_attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  const auto from = operands_in_16_bits(s, q, k, v);
  return run_attention(
      key_of(false, s, params, q.dtype),
      std::array{rows_of(s, kQ, from.q, s.queries, s.operand_row()), rows_of(s, kK, from.k, s.keys, s.operand_row()),
                 rows_of(s, kV, from.v, s.keys, s.operand_row()), rows_of(s, kO, y.data, s.queries, s.row()),
                 statistics_of(s, log_sums.data)},
      stream);
}

bool cudnn_attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                              Out k_grad, Out v_grad, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  const auto from = operands_in_16_bits(s, q, k, v);
  const auto to = operands_in_16_bits(s, q_grad, k_grad, v_grad);
  return run_attention(
      key_of(true, s, params, q.dtype),
      std::array{rows_of(s, kQ, from.q, s.queries, s.operand_row()), rows_of(s, kK, from.k, s.keys, s.operand_row()),
                 rows_of(s, kV, from.v, s.keys, s.operand_row()), rows_of(s, kO, y.data, s.queries, s.row()),
                 rows_of(s, kOGrad, y_grad.data, s.queries, s.row()), statistics_of(s, log_sums.data),
                 rows_of(s, kQGrad, to.q, s.queries, s.operand_row()),
                 rows_of(s, kKGrad, to.k, s.keys, s.operand_row()), rows_of(s, kVGrad, to.v, s.keys, s.operand_row())},
      stream);
}

}  // namespace lockstep::cuda
