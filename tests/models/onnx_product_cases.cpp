#include "lockstep/autograd/ops.h"
#include "tests/models/onnx_cases.h"

namespace lockstep::models {

std::vector<NamedResult> product_results() {
  return {
      of_two("matmul", [](const Tensor& a, const Tensor& b) { return matmul(a, b, {.transpose_b = true}); }),
      of_two("matmul_transposed", [](const Tensor& a, const Tensor& b) { return matmul(a, b, {.transpose_a = true}); }),
      of_two("matmul_of_matrix", [w = randn({4, 5})](const Tensor& a, const Tensor&) { return matmul(a, w); }),
      of_two("matmul_of_turned_matrix",
             [w = randn({5, 4})](const Tensor& a, const Tensor&) { return matmul(a, w, {.transpose_b = true}); }),
      of_two("einsum", [](const Tensor& a, const Tensor& b) { return einsum("nij,nkj->nik", a, b); }),
      of_two("einsum_outer", [](const Tensor& a, const Tensor& b) { return einsum("nij,nkl->njlik", a, b); }),
      of_two("einsum_of_samples", [](const Tensor& a, const Tensor& b) { return einsum("nij,nij->ij", a, b); }),
      of_two("einsum_of_one", [](const Tensor& a, const Tensor&) { return einsum("nij->jn", a); }),
      of_two("linear", [w = randn({5, 4}), b = randn({5})](
                           const Tensor& x, const Tensor&) { return linear(x, w, b, Activation::kReLU); }),
      of_two("linear_of_rows",
             [w = randn({5, 4})](const Tensor& x, const Tensor&) { return linear(sum(x, 1), w, {}); }),
      of_two("feed_forward",
             [up = randn({6, 4}), down = randn({4, 6}), bias = randn({6})](const Tensor& x, const Tensor&) {
               return feed_forward(x, {up, bias, down, {}});
             }),
      of_two("layer_norm",
             [](const Tensor& a, const Tensor&) {
               return layer_norm(a, {3, 4});
             }),
      of_two("add_layer_norm",
             [w = randn({4}), b = randn({4})](const Tensor& x, const Tensor& y) {
               const auto [sum, normal] = add_layer_norm(x, y, {4}, w, b);
               return sum * normal;
             }),
      of_two("rms_norm",
             [](const Tensor& a, const Tensor&) {
               return rms_norm(a, {3, 4});
             }),
      of_two("group_norm", [](const Tensor& a, const Tensor&) { return group_norm(a, 2); }),
      of_two("dropout", [](const Tensor& a, const Tensor&) { return dropout(a, 0.5F, false) * 2; })};
}

std::vector<NamedResult> attention_results() {
  const auto with = [](const std::string& name, const AttentionOptions& options, bool reads_lengths = false) {
    return NamedResult{name, [=](const Tensors& in) {
                         AttentionOptions all = options;
                         const auto lengths = in[3].span<std::int64_t>();
                         if (reads_lengths) all.key_lengths.assign(lengths.begin(), lengths.end());
                         return scaled_dot_product_attention(in[0], in[1], in[2], all);
                       }};
  };
  const Tensor bias = randn({1, 6, 4, 4});
  return {with("grouped", {}),
          with("grouped_causal", {.causal = true, .scale = 0.3F}),
          with("lengths", {}, true),
          with("causal_lengths", {.causal = true}, true),
          with("float_mask", {.mask = bias}),
          with("mask", {.mask = gt(bias, 0)}),
          with("mask_and_lengths", {.causal = true, .mask = gt(bias, -1)}, true),
          {"equal_heads",
           [](const Tensors& in) { return scaled_dot_product_attention(in[0], in[0] * 2, in[0], {.causal = true}); }},
          {"mask_of_input",
           [](const Tensors& in) {
             const Tensor hidden = unsqueeze(unsqueeze(slice(in[1], {{}, {}, {0, 1}, {0, 1}}), 0), 0);
             return scaled_dot_product_attention(in[0], in[1], in[2],
                                                 {.mask = gt(reshape(hidden, {in[0].shape()[0], 1, 1, 4}), -1)});
           }},
          {"last_queries",
           [](const Tensors& in) {
             return scaled_dot_product_attention(slice(in[0], 1, {2, 4}), in[1], in[2],
                                                 {.causal = true, .causal_alignment = CausalAlignment::kLowerRight});
           }},
          {"blind_queries",
           [](const Tensors& in) {
             return scaled_dot_product_attention(in[0], slice(in[1], 1, {0, 3}), slice(in[2], 1, {0, 3}),
                                                 {.causal = true, .causal_alignment = CausalAlignment::kLowerRight});
           }},
          {"packed", [](const Tensors& in) {
             return scaled_dot_product_attention(stack({in[1], in[2], in[1] + in[2]}, 2), {.causal = true});
           }}};
}

}  // namespace lockstep::models
