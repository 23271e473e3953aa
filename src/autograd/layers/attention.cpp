#include "lockstep/autograd/attention.h"

#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/layers/attention_products.h"

namespace lockstep {

namespace {

constexpr const char* kName = "scaled_dot_product_attention";
constexpr std::int64_t kMostCudaWidth = 256;

// Inputs: q, k, v, or only qkv; and the mask, if there is one. Saved: the inputs, the result, the logarithms of the
// sums.
class AttentionNode : public Node {
 public:
  AttentionNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const AttentionParams& params,
                std::vector<std::int64_t> key_lengths)
      : Node(std::move(inputs), std::move(saved)), params_(params), key_lengths_(std::move(key_lengths)) {
    if (!key_lengths_.empty()) params_.key_lengths = key_lengths_.data();
  }
  const char* name() const override { return kName; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"scale", double{params_.scale}},
                      {"causal", std::int64_t{params_.causal}},
                      {"causal_offset", params_.causal_offset},
                      {"key_lengths", key_lengths_},
                      {"has_mask", std::int64_t{params_.mask != nullptr}}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (inputs().size() <= 2) return compute(result_grad, {saved(0), {}, {}}, {targets[0], {}, {}});
    compute(result_grad, {saved(0), saved(1), saved(2)}, {targets[0], targets[1], targets[2]});
  }

 private:
  void compute(const Tensor& y_grad, const std::array<InputView, 3>& from, const std::array<OutputView, 3>& to) {
    const std::size_t count = inputs().size();
    AttentionParams params = params_;
    if (params.mask != nullptr) params.mask = saved(count - 1).data<float>();
    kernels_of(y_grad).attention_backward(params, from[0], from[1], from[2], saved(count), saved(count + 1), y_grad,
                                          to[0], to[1], to[2], stream_of(y_grad));
  }

  AttentionParams params_;
  const std::vector<std::int64_t> key_lengths_;
};

void check_width(const Tensor& q, std::int64_t width) {
  if (q.device().kind() == DeviceKind::kCuda && width > kMostCudaWidth)
    throw InvalidArgument("{}: heads have at most {} elements on a GPU, got {} in {}: use more heads", kName,
                          kMostCudaWidth, width, q.shape().text());
}

// The sizes of one call: N, T, S, H.
struct Sizes {
  std::int64_t batch, queries, keys, heads;
};

void check_mask(const Tensor& mask, const Tensor& q, const Sizes& s) {
  check_place(kName, "mask", mask, kAnyDims, &q.device());
  const DType type = mask.dtype();
  if (type != DType::kUInt8 && type != DType::kInt8) check_activation(kName, "mask", mask);
  const Shape scores{s.batch, s.heads, s.queries, s.keys};
  const std::size_t dims = mask.shape().dims();
  bool fits = dims <= 4;
  for (std::size_t d = 0; d < dims && fits; ++d) {
    const std::int64_t extent = mask.shape()[d];
    fits = extent == 1 || extent == scores[4 - dims + d];
  }
  if (!fits)
    throw InvalidArgument("{}: the mask is broadcast to (N, H, T, S) = {}, got {}", kName, scores.text(),
                          mask.shape().text());
}

void check_options(const AttentionOptions& options, const Tensor& q, const Sizes& s) {
  if (!std::isfinite(options.scale)) throw InvalidArgument("{}: scale must be finite, got {}", kName, options.scale);
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw InvalidArgument("{}: dropout must be in [0, 1), got {}", kName, options.dropout);
  if (options.causal && options.causal_alignment == CausalAlignment::kEqualLengths && s.keys != s.queries)
    throw InvalidArgument(
        "{}: causal attention of {} queries and {} keys: expected as many keys as queries, or an option "
        "causal_alignment (kLowerRight if the queries are the last positions, kUpperLeft for PyTorch's is_causal)",
        kName, s.queries, s.keys);
  if (!options.key_lengths.empty() && static_cast<std::int64_t>(options.key_lengths.size()) != s.batch)
    throw InvalidArgument("{}: expected one key length for each of {} samples, got {}", kName, s.batch,
                          options.key_lengths.size());
  for (std::size_t n = 0; n < options.key_lengths.size(); ++n)
    if (options.key_lengths[n] < 0 || options.key_lengths[n] > s.keys)
      throw InvalidArgument("{}: key_lengths[{}] must be in [0, {}], the number of keys, got {}", kName, n, s.keys,
                            options.key_lengths[n]);
  if (s.keys == 0 && s.queries > 0)
    throw InvalidArgument("{}: {} of {} queries has no keys to attend to", kName, name_argument("q", q), s.queries);
  if (options.mask.defined()) check_mask(options.mask, q, s);
}

float factor_of(const AttentionOptions& options, std::int64_t width) {
  return options.scale == 0 && width > 0 ? 1 / std::sqrt(static_cast<float>(width)) : options.scale;
}

// Whether only attention_by_products() computes this. The kernels of GPUs have fewer options than those of the CPU.
bool needs_products(const AttentionOptions& options, const Tensor& q, const Sizes& s, bool is_grouped) {
  if (options.dropout > 0 || (options.mask.defined() && requires_grad(options.mask))) return true;
  return q.device().kind() == DeviceKind::kCuda && (options.mask.defined() || !options.key_lengths.empty() ||
                                                    is_grouped || (options.causal && s.keys != s.queries));
}

// The mask as numbers that are added to scores, with all keys in its rows.
Tensor added_to_scores(const Tensor& mask, std::int64_t keys) {
  const auto constant = [&](float value) { return Tensor::full({1}, value, mask.device()); };
  const bool is_boolean = mask.dtype() == DType::kUInt8 || mask.dtype() == DType::kInt8;
  const Tensor added = is_boolean ? where(mask, constant(0), constant(-std::numeric_limits<float>::infinity()))
                                  : cast(mask, DType::kFloat32);
  std::vector<std::int64_t> extents(added.shape().extents().begin(), added.shape().extents().end());
  if (extents.empty()) extents.push_back(1);
  if (extents.back() == keys) return added;
  extents.back() = keys;
  return broadcast_to(added, Shape(std::span<const std::int64_t>(extents)));
}

// The distances of the mask's samples, heads and queries, 0 where it is the same for all.
void set_mask(AttentionParams& params, const Tensor& mask) {
  params.mask = mask.data<float>();
  const Strides strides = strides_of(mask.shape());
  const std::size_t dims = mask.shape().dims();
  for (std::size_t d = 0; d + 1 < dims; ++d)
    params.mask_strides[4 - dims + d] = mask.shape()[static_cast<std::int64_t>(d)] == 1 ? 0 : strides[d];
}

Tensor attention(std::vector<Tensor> inputs, const Shape& result, const AttentionOptions& options) {
  const Tensor q = inputs.front();
  const bool packed = inputs.size() == 1;
  const std::int64_t keys = packed ? q.shape()[1] : inputs[1].shape()[1];
  AttentionParams params{factor_of(options, result[3]), options.causal};
  if (options.causal_alignment == CausalAlignment::kLowerRight) params.causal_offset = keys - result[1];
  if (!options.key_lengths.empty()) params.key_lengths = options.key_lengths.data();
  Tensor mask;
  if (options.mask.defined() && result.count() > 0) {
    mask = added_to_scores(options.mask, keys);
    set_mask(params, mask);
  }
  const Tensor y = empty_like(q, result), log_sums = empty_like(q, {result[0], result[2], result[1]}, DType::kFloat32);
  kernels_of(q).attention(params, q, packed ? InputView() : InputView(inputs[1]),
                          packed ? InputView() : InputView(inputs[2]), y, log_sums, stream_of(q));
  if (mask.defined()) inputs.push_back(mask);
  std::vector<Tensor> saved = inputs;
  saved.push_back(detach(y));
  saved.push_back(log_sums);
  record<AttentionNode>(y, std::move(inputs), std::move(saved), params, options.key_lengths);
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
  const std::int64_t key_heads = k_shape[2];
  if (k_shape != v.shape() || k_shape[0] != q_shape[0] || k_shape[3] != q_shape[3] ||
      (key_heads == 0 ? q_shape[2] != 0 : q_shape[2] % key_heads != 0))
    throw InvalidArgument(
        "{}: q (N, T, H, D), k and v (N, S, K, D) expected, where K divides H; got {} {}, {} {}, {} {}", kName,
        name_argument("q", queries), q_shape.text(), name_argument("k", keys), k_shape.text(),
        name_argument("v", values), v.shape().text());
  const Sizes sizes{q_shape[0], q_shape[1], k_shape[1], q_shape[2]};
  check_options(options, q, sizes);
  check_width(q, q_shape[3]);
  if (needs_products(options, q, sizes, key_heads != q_shape[2]) && q_shape.count() > 0)
    return attention_by_products(q, k, v, options, factor_of(options, q_shape[3]));
  return attention({q, k, v}, q_shape, options);
}

Tensor scaled_dot_product_attention(const Tensor& given, const AttentionOptions& options) {
  check_activation(kName, "qkv (N, T, 3, H, D)", given, 5);
  const Tensor qkv = autocast(given);
  const Shape& shape = qkv.shape();
  if (shape[2] != 3)
    throw InvalidArgument("{}: qkv (N, T, 3, H, D) expected, got {}", kName, name_argument(shape.text(), given));
  const Sizes sizes{shape[0], shape[1], shape[1], shape[3]};
  check_options(options, qkv, sizes);
  check_width(qkv, shape[4]);
  const Shape result{shape[0], shape[1], shape[3], shape[4]};
  if (!needs_products(options, qkv, sizes, /*is_grouped=*/false) || result.count() == 0)
    return attention({qkv}, result, options);
  const auto part = [&](std::int64_t which) { return squeeze(slice(qkv, 2, {which, which + 1}), 2); };
  return attention_by_products(part(0), part(1), part(2), options, factor_of(options, shape[4]));
}

}  // namespace lockstep
