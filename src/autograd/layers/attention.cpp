#include "lockstep/autograd/attention.h"

#include <array>
#include <cmath>

#include "lockstep/autograd/extend.h"

namespace lockstep {

namespace {

constexpr const char* kName = "scaled_dot_product_attention";
constexpr std::int64_t kMostCudaWidth = 256;

// Inputs: q, k, v, or only qkv. Saved: the inputs, the result, the logarithms of the sums.
class AttentionNode : public Node {
 public:
  AttentionNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const AttentionParams& params)
      : Node(std::move(inputs), std::move(saved)), params_(params) {}
  const char* name() const override { return kName; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (inputs().size() == 1) return compute(result_grad, {saved(0), {}, {}}, {targets[0], {}, {}});
    compute(result_grad, {saved(0), saved(1), saved(2)}, {targets[0], targets[1], targets[2]});
  }

 private:
  void compute(const Tensor& y_grad, const std::array<InputView, 3>& from, const std::array<OutputView, 3>& to) {
    const std::size_t count = inputs().size();
    kernels_of(y_grad).attention_backward(params_, from[0], from[1], from[2], saved(count), saved(count + 1), y_grad,
                                          to[0], to[1], to[2], stream_of(y_grad));
  }

  AttentionParams params_;
};

void check_width(const Tensor& q, std::int64_t width) {
  if (q.device().kind() == DeviceKind::kCuda && width > kMostCudaWidth)
    throw InvalidArgument("{}: heads have at most {} elements on a GPU, got {} in {}: use more heads", kName,
                          kMostCudaWidth, width, q.shape().text());
}

Tensor attention(std::vector<Tensor> inputs, const Shape& result, const AttentionOptions& options) {
  const Tensor& q = inputs.front();
  const std::int64_t width = result[3];
  check_width(q, width);
  if (!std::isfinite(options.scale)) throw InvalidArgument("{}: scale must be finite, got {}", kName, options.scale);
  const float scale = options.scale == 0 && width > 0 ? 1 / std::sqrt(static_cast<float>(width)) : options.scale;
  const AttentionParams params{scale, options.causal};
  const Tensor y = empty_like(q, result), log_sums = empty_like(q, {result[0], result[2], result[1]}, DType::kFloat32);
  const bool packed = inputs.size() == 1;
  kernels_of(q).attention(params, q, packed ? InputView() : InputView(inputs[1]),
                          packed ? InputView() : InputView(inputs[2]), y, log_sums, stream_of(q));
  std::vector<Tensor> saved = inputs;
  saved.push_back(detach(y));
  saved.push_back(log_sums);
  record<AttentionNode>(y, std::move(inputs), std::move(saved), params);
  return y;
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                                    const AttentionOptions& options) {
  check_activation(kName, "q (N, T, H, D)", queries, 4);
  check_activation(kName, "k (N, S, H, D)", keys, 4, &queries.device());
  check_activation(kName, "v (N, S, H, D)", values, 4, &queries.device());
  Tensor q = queries, k = keys, v = values;
  autocast_together({&q, &k, &v});
  check_alike(kName, "k", k, q);
  check_alike(kName, "v", v, q);
  const Shape &q_shape = q.shape(), &k_shape = k.shape();
  if (k_shape != v.shape() || k_shape[0] != q_shape[0] || k_shape[2] != q_shape[2] || k_shape[3] != q_shape[3])
    throw InvalidArgument("{}: q (N, T, H, D), k and v (N, S, H, D) expected, got {} {}, {} {}, {} {}", kName,
                          name_argument("q", queries), q_shape.text(), name_argument("k", keys), k_shape.text(),
                          name_argument("v", values), v.shape().text());
  if (options.causal && k_shape[1] != q_shape[1])
    throw InvalidArgument("{}: causal attention needs as many keys as queries, got {} {}, {} {}", kName,
                          name_argument("q", queries), q_shape.text(), name_argument("k", keys), k_shape.text());
  if (k_shape[1] == 0 && q_shape[1] > 0)
    throw InvalidArgument("{}: {} {} has no keys to attend to: {} {}", kName, name_argument("q", queries),
                          q_shape.text(), name_argument("k", keys), k_shape.text());
  return attention({q, k, v}, q_shape, options);
}

Tensor scaled_dot_product_attention(const Tensor& given, const AttentionOptions& options) {
  check_activation(kName, "qkv (N, T, 3, H, D)", given, 5);
  const Tensor qkv = autocast(given);
  const Shape& shape = qkv.shape();
  if (shape[2] != 3)
    throw InvalidArgument("{}: qkv (N, T, 3, H, D) expected, got {}", kName, name_argument(shape.text(), given));
  return attention({qkv}, {shape[0], shape[1], shape[3], shape[4]}, options);
}

}  // namespace lockstep
