// Attention as products. With N samples, T queries, S keys, H heads of width D and K heads of keys:
//
//   q (N, T, H, D) -> (N, K, H / K * T, D)   the queries of all heads that read the same keys are the rows of a product
//   k (N, S, K, D) -> (N, K, D, S)
//   scores = q k -> (N, H, T, S), masked, softmax -> (N, K, H / K * T, S), times v (N, K, S, D)
#include "src/models/onnx/converters.h"

namespace lockstep::onnx {

namespace {

constexpr float kHidden = -1e30F;  // finite, so that a row of hidden scores alone has a softmax

struct AttentionCall {
  std::string q, k, v;
  Extent samples;
  std::int64_t queries, keys, heads, key_heads, width;
  std::string mask;  // added to the scores; empty: none
};

AttentionCall operands_of(Conversion& c) {
  const Extents from = c.extents(0);
  const std::size_t operands = c.inputs() - static_cast<std::size_t>(c.integer("has_mask"));
  const std::string mask = operands == c.inputs() ? "" : c.in(operands);
  if (operands == 1) {
    const std::string qkv = c.in(0);
    const auto part = [&](std::int64_t which) {
      return c.to.add("Gather", {qkv, c.to.integer(which)}, {{"axis", std::int64_t{2}}});
    };
    const std::int64_t positions = c.fixed(from[1]), heads = c.fixed(from[3]);
    return {part(0), part(1), part(2), from[0], positions, positions, heads, heads, c.fixed(from[4]), mask};
  }
  const Extents k = c.extents(1);
  return {c.in(0),       c.in(1),          c.in(2),       from[0],          c.fixed(from[1]),
          c.fixed(k[1]), c.fixed(from[2]), c.fixed(k[2]), c.fixed(from[3]), mask};
}

struct Visible {
  std::string mask;  // bool, broadcast to (N, H, T, S); empty: everything
  bool has_blind_queries = false;
};

Visible visible_scores(Conversion& c, const AttentionCall& call) {
  Visible visible;
  if (c.integer("causal") != 0) {
    const std::int64_t offset = c.integer("causal_offset");
    std::vector<std::uint8_t> mask;
    for (std::int64_t t = 0; t < call.queries; ++t)
      for (std::int64_t s = 0; s < call.keys; ++s) mask.push_back(s <= t + offset);
    visible.mask = c.to.mask(mask, {call.queries, call.keys});
    visible.has_blind_queries = offset < 0;
  }
  const auto hide = [&](const std::string& mask) {
    visible.mask = visible.mask.empty() ? mask : c.to.add("And", {visible.mask, mask});
    visible.has_blind_queries = true;
  };
  if (c.has_lengths("key_lengths"))
    hide(c.to.add("Unsqueeze", {c.to.length_mask(c.lengths("key_lengths"), call.keys), c.to.ints({1, 2})}));
  if (!call.mask.empty())
    hide(c.to.add("Not", {c.to.add("IsInf", {call.mask}, {{"detect_positive", std::int64_t{0}}})}));
  return visible;
}

}  // namespace

void convert_attention(Conversion& c) {
  GraphBuilder& to = c.to;
  const AttentionCall call = operands_of(c);
  const bool is_grouped = call.heads != call.key_heads;
  const Extents by_heads = {call.samples, {0, call.heads}, {0, call.queries}, {0, call.width}};
  const std::int64_t rows = call.key_heads == 0 ? 0 : call.heads / call.key_heads * call.queries;
  const Extents by_keys = {call.samples, {0, call.key_heads}, {0, rows}, {0, call.width}};
  const Extents scores_of_heads = {call.samples, {0, call.heads}, {0, call.queries}, {0, call.keys}};
  const Extents scores_of_keys = {call.samples, {0, call.key_heads}, {0, rows}, {0, call.keys}};

  std::string q = to.add("Mul", {to.transpose(call.q, {0, 2, 1, 3}), to.number(c.number("scale"))});
  if (is_grouped) q = to.reshape(q, by_heads, by_keys);
  std::string scores = to.add("MatMul", {q, to.transpose(call.k, {0, 2, 3, 1})});
  if (is_grouped) scores = to.reshape(scores, scores_of_keys, scores_of_heads);
  const Visible visible = visible_scores(c, call);
  if (!call.mask.empty()) scores = to.add("Add", {scores, call.mask});
  if (!visible.mask.empty()) scores = to.add("Where", {visible.mask, scores, to.number(kHidden)});
  std::string p = to.add("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  if (visible.has_blind_queries) p = to.add("Where", {visible.mask, p, to.number(0)});
  if (is_grouped) p = to.reshape(p, scores_of_heads, scores_of_keys);
  std::string y = to.add("MatMul", {p, to.transpose(call.v, {0, 2, 1, 3})});
  if (is_grouped) y = to.reshape(y, by_keys, by_heads);
  c.result(to.transpose(y, {0, 2, 1, 3}));
}

}  // namespace lockstep::onnx
