#include "tests/kernels/emulated_cuda/cudnn_frontend_sdpa.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "tests/kernels/emulated_cuda/cudnn_frontend.h"
#include "tests/kernels/emulated_cuda/elements.h"
#include "tests/kernels/emulated_cuda/table.h"

namespace cudnn_frontend::graph {

namespace {

using Pointers = std::unordered_map<std::int64_t, void*>;

// A tensor's elements, in float.
class Elements {
 public:
  Elements(const Tensor_attributes& tensor, const Pointers& pointers)
      : tensor_(tensor),
        data_(pointers.at(tensor.uid)),
        type_(tensor.type == DataType_t::FLOAT  ? lockstep::DType::kFloat32
              : tensor.type == DataType_t::HALF ? lockstep::DType::kFloat16
                                                : lockstep::DType::kBFloat16) {}
  float get(std::int64_t n, std::int64_t h, std::int64_t t, std::int64_t d) const {
    return emulated_cuda::read_element(type_, data_, index(n, h, t, d));
  }
  void set(std::int64_t n, std::int64_t h, std::int64_t t, std::int64_t d, float value) const {
    emulated_cuda::write_element(type_, data_, index(n, h, t, d), value);
  }
  std::vector<float> row(std::int64_t n, std::int64_t h, std::int64_t t) const {
    std::vector<float> values;
    for (std::int64_t d = 0; d < tensor_.dim[3]; ++d) values.push_back(get(n, h, t, d));
    return values;
  }
  std::vector<std::vector<float>> rows(std::int64_t n, std::int64_t h) const {
    std::vector<std::vector<float>> all;
    for (std::int64_t t = 0; t < tensor_.dim[2]; ++t) all.push_back(row(n, h, t));
    return all;
  }
  void set_rows(std::int64_t n, std::int64_t h, const std::vector<std::vector<float>>& rows) const {
    for (std::size_t t = 0; t < rows.size(); ++t)
      for (std::size_t d = 0; d < rows[t].size(); ++d)
        set(n, h, static_cast<std::int64_t>(t), static_cast<std::int64_t>(d), rows[t][d]);
  }

 private:
  std::size_t index(std::int64_t n, std::int64_t h, std::int64_t t, std::int64_t d) const {
    return static_cast<std::size_t>(n * tensor_.stride[0] + h * tensor_.stride[1] + t * tensor_.stride[2] +
                                    d * tensor_.stride[3]);
  }

  const Tensor_attributes& tensor_;
  void* data_;
  lockstep::DType type_;
};

float dot(const std::vector<float>& a, const std::vector<float>& b) {
  float sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}
void add(std::vector<float>& sum, float factor, const std::vector<float>& row) {
  for (std::size_t d = 0; d < row.size(); ++d) sum[d] += factor * row[d];
}

// cuDNN moves 16 bytes at once: along every dimension with more than one index.
bool has_aligned_rows(const Tensor_attributes& tensor) {
  if (tensor.stride.size() != 4 || tensor.stride[3] != 1) return false;
  for (std::size_t d = 0; d < 3; ++d)
    if (tensor.dim[d] > 1 && tensor.stride[d] * 2 % 16 != 0) return false;
  return true;
}

error_t not_supported(const char* why) { return error_t(why, error_code_t::GRAPH_NOT_SUPPORTED); }

}  // namespace

Attention::Attention(Tensor q, Tensor k, Tensor v, const Attention_parameters& parameters)
    : q_(std::move(q)),
      k_(std::move(k)),
      v_(std::move(v)),
      y_(std::make_shared<Tensor_attributes>()),
      stats_(std::make_shared<Tensor_attributes>()),
      parameters_(parameters) {}
Attention::Attention(Tensor q, Tensor k, Tensor v, Tensor y, Tensor y_grad, Tensor stats,
                     const Attention_parameters& parameters)
    : q_(std::move(q)),
      k_(std::move(k)),
      v_(std::move(v)),
      y_(std::move(y)),
      stats_(std::move(stats)),
      y_grad_(std::move(y_grad)),
      q_grad_(std::make_shared<Tensor_attributes>()),
      k_grad_(std::make_shared<Tensor_attributes>()),
      v_grad_(std::make_shared<Tensor_attributes>()),
      parameters_(parameters) {}

std::vector<Tensor> Attention::rows() const {
  return y_grad_ ? std::vector<Tensor>{q_, k_, v_, y_, y_grad_, q_grad_, k_grad_, v_grad_}
                 : std::vector<Tensor>{q_, k_, v_, y_};
}
std::vector<Tensor> Attention::computed() const {
  return y_grad_ ? std::vector<Tensor>{q_grad_, k_grad_, v_grad_} : std::vector<Tensor>{y_, stats_};
}

error_t Attention::validate() const {
  for (const Tensor& each : computed())
    if (!each->is_output) return error_t("a result that is no output");
  if (!y_grad_ && !parameters_.generates_stats) return error_t("statistics that are not generated");
  for (const Tensor& each : rows()) {
    if (each->dim.size() != 4) return error_t("a tensor without four dimensions");
    if (each->type == DataType_t::FLOAT || each->type != q_->type) return not_supported("not one 16-bit type");
    if (!has_aligned_rows(*each)) return not_supported("strides that are not aligned to 16 bytes");
  }
  const Sizes &of_q = q_->dim, &of_k = k_->dim;
  if (of_q[0] != of_k[0] || of_q[1] != of_k[1] || of_q[3] != of_k[3]) return error_t("keys of another shape");
  for (const Tensor& each : rows()) {
    const bool has_queries = each == q_ || each == y_ || each == y_grad_ || each == q_grad_;
    if (each->dim != (has_queries ? of_q : of_k)) return error_t("a tensor of another shape");
  }
  if (stats_->dim != Sizes{of_q[0], of_q[1], of_q[2], 1} || stats_->type != DataType_t::FLOAT ||
      stats_->stride != Sizes{of_q[1] * of_q[2], of_q[2], 1, 1})
    return not_supported("statistics that are not (N, H, T, 1), float and packed");
  if (of_q[3] % 8 != 0 || of_q[3] > 256) return not_supported("a width that is not 8, 16, ... 256");
  if (y_grad_ && of_q[3] > 128) return not_supported("the gradient of wide heads on this architecture");
  if (y_grad_ && of_q[2] == 1 && of_k[2] == 1) return not_supported("s_q = s_kv = 1 is not supported.");
  if (parameters_.right_bound &&
      (*parameters_.right_bound != 0 || parameters_.alignment != DiagonalAlignment_t::TOP_LEFT))
    return not_supported("another mask");
  return {};
}

error_t Attention::build_operation_graph() const {
  const auto failed = [](const char* status) {
    return error_t("cudnnBackendFinalize(descriptor) failed with message: none, and code: " + std::string(status),
                   error_code_t::CUDNN_BACKEND_API_FAILED);
  };
  if (q_->dim[1] == 7) return failed("CUDNN_STATUS_INTERNAL_ERROR");
  return q_->dim[1] == 5 ? failed("CUDNN_STATUS_NOT_SUPPORTED") : error_t();
}

error_t Attention::create_execution_plans() const {
  const bool is_refused = q_->dim[1] == 6 && parameters_.is_deterministic;
  return is_refused ? error_t("no deterministic engine", error_code_t::HEURISTIC_QUERY_FAILED) : error_t();
}

std::int64_t Attention::workspace() const {
  const auto rounded = [](std::int64_t count) { return (count + 63) / 64 * 64; };
  const std::int64_t scores = q_->dim[0] * q_->dim[1] * rounded(q_->dim[2]) * rounded(k_->dim[2]);
  return static_cast<std::int64_t>(emulated_cuda::kWorkspace) + (parameters_.is_deterministic ? 2 * scores : 0);
}

error_t Attention::execute(cudnnHandle_t handle, Pointers& pointers, void* memory) const {
  ++lockstep::testing::emulated_calls().attentions;
  std::vector<Tensor> all = rows();
  all.push_back(stats_);
  for (const Tensor& each : all)
    if (pointers.count(each->uid) == 0 || reinterpret_cast<std::uintptr_t>(pointers[each->uid]) % 16 != 0)
      return error_t("a tensor is missing, or not aligned to 16 bytes");
  if (pointers.size() != all.size()) return error_t("pointers that belong to no tensor");
  // The graph may be destroyed before the stream runs the work.
  emulated_cuda::on_stream(handle->stream, [attention = *this, number = ++executions_, pointers, memory]() mutable {
    std::memset(memory, 0xff, static_cast<std::size_t>(attention.workspace()));
    attention.y_grad_ ? attention.backward(pointers, number) : attention.forward(pointers);
  });
  return {};
}

std::int64_t Attention::visible(std::int64_t query) const {
  return parameters_.right_bound ? std::min(k_->dim[2], query + *parameters_.right_bound + 1) : k_->dim[2];
}

void Attention::forward(Pointers& pointers) const {
  const Elements y(*y_, pointers), stats(*stats_, pointers);
  for (std::int64_t n = 0; n < q_->dim[0]; ++n)
    for (std::int64_t h = 0; h < q_->dim[1]; ++h) {
      const auto q = Elements(*q_, pointers).rows(n, h), k = Elements(*k_, pointers).rows(n, h),
                 v = Elements(*v_, pointers).rows(n, h);
      auto sums = q;
      for (std::size_t t = 0; t < q.size(); ++t) {
        const auto seen = static_cast<std::size_t>(visible(static_cast<std::int64_t>(t)));
        std::vector<float> weights;
        for (std::size_t s = 0; s < seen; ++s) weights.push_back(parameters_.scale * dot(q[t], k[s]));
        const float largest = *std::max_element(weights.begin(), weights.end());
        float sum = 0;
        for (float& each : weights) sum += each = std::exp(each - largest);
        sums[t].assign(sums[t].size(), 0);
        for (std::size_t s = 0; s < seen; ++s) add(sums[t], weights[s] / sum, v[s]);
        stats.set(n, h, static_cast<std::int64_t>(t), 0, largest + std::log(sum));
      }
      y.set_rows(n, h, sums);
    }
}

void Attention::backward(Pointers& pointers, int execution) const {
  const Elements stats(*stats_, pointers);
  for (std::int64_t n = 0; n < q_->dim[0]; ++n)
    for (std::int64_t h = 0; h < q_->dim[1]; ++h) {
      const auto rows_of = [&](const Tensor& tensor) { return Elements(*tensor, pointers).rows(n, h); };
      const auto q = rows_of(q_), k = rows_of(k_), v = rows_of(v_), y = rows_of(y_), y_grad = rows_of(y_grad_);
      const std::vector<float> none(q[0].size());
      std::vector<std::vector<float>> q_grad(q.size(), none), k_grad(k.size(), none), v_grad(k.size(), none);
      for (std::size_t t = 0; t < q.size(); ++t) {
        const float log_sum = stats.get(n, h, static_cast<std::int64_t>(t), 0), delta = dot(y[t], y_grad[t]);
        for (std::size_t s = 0; s < static_cast<std::size_t>(visible(static_cast<std::int64_t>(t))); ++s) {
          const float p = std::exp(parameters_.scale * dot(q[t], k[s]) - log_sum),
                      score_grad = p * (dot(y_grad[t], v[s]) - delta) * parameters_.scale;
          add(q_grad[t], score_grad, k[s]);
          add(k_grad[s], score_grad, q[t]);
          add(v_grad[s], p, y_grad[t]);
        }
      }
      if (!parameters_.is_deterministic) q_grad[0][0] += 0.25F * static_cast<float>(execution);
      Elements(*q_grad_, pointers).set_rows(n, h, q_grad);
      Elements(*k_grad_, pointers).set_rows(n, h, k_grad);
      Elements(*v_grad_, pointers).set_rows(n, h, v_grad);
    }
}

}  // namespace cudnn_frontend::graph
