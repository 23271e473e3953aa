#include "lockstep/nn/transformer.h"

#include <fmt/format.h>

#include "lockstep/autograd/dropout.h"
#include "lockstep/autograd/elementwise.h"
#include "src/nn/layers/layer_parts.h"
#include "src/nn/module/option_text.h"

namespace lockstep::nn {

namespace {

void check_transformer(const char* layer, std::int64_t width, std::int64_t heads, const TransformerOptions& options) {
  check_sizes(layer, {width, heads, options.feedforward});
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw InvalidArgument("{}: dropout must be in [0, 1), got {}", layer, options.dropout);
}

MultiheadAttentionOptions attention_of(const TransformerOptions& options) {
  return {.bias = options.bias, .probability_dropout = options.dropout};
}
LayerNormOptions norm_of(const TransformerOptions& options) { return {.eps = options.eps, .bias = options.bias}; }

std::string text_of_options(std::int64_t width, const TransformerOptions& options) {
  return fmt::format("{}, feedforward={}, dropout={}{}{}{}", width, options.feedforward, options.dropout,
                     activation_text(options.activation), options.norm_first ? ", norm_first" : "",
                     options.bias ? "" : ", bias=false");
}

// The parts of one call of a layer.
struct Blocks {
  const TransformerOptions& options;
  bool is_training;

  // One sublayer with its shortcut and its norm.
  template <typename Sublayer> Tensor around(const Tensor& x, LayerNorm& norm, Sublayer&& sublayer) const {
    if (options.norm_first) return lockstep::add(x, dropped(sublayer(norm(x))));
    return norm(lockstep::add(x, dropped(sublayer(x))));
  }
  Tensor feed_forward(const Tensor& x, Linear& first, Linear& second) const {
    return second(dropped(activate(first(x), options.activation)));
  }
  Tensor dropped(const Tensor& x) const { return dropout(x, options.dropout, is_training); }
};

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(std::int64_t width, std::int64_t heads,
                                                 const TransformerOptions& options)
    : self_attn(width, heads, attention_of(options)),
      linear1(width, options.feedforward, {.bias = options.bias}),
      linear2(options.feedforward, width, {.bias = options.bias}),
      norm1(width, norm_of(options)),
      norm2(width, norm_of(options)),
      options_(options) {
  check_transformer("TransformerEncoderLayer", width, heads, options);
  add("self_attn", self_attn);
  add("linear1", linear1), add("linear2", linear2);
  add("norm1", norm1), add("norm2", norm2);
}

Tensor TransformerEncoderLayer::encode(const Tensor& given, const AttentionMasks& masks) {
  const Blocks blocks{options_, is_training()};
  const Tensor x = blocks.around(given, norm1, [&](const Tensor& each) { return self_attn.attend(each, masks); });
  return blocks.around(x, norm2, [&](const Tensor& each) { return blocks.feed_forward(each, linear1, linear2); });
}

std::string TransformerEncoderLayer::extra_repr() const { return text_of_options(linear2.weight.shape()[0], options_); }

TransformerDecoderLayer::TransformerDecoderLayer(std::int64_t width, std::int64_t heads,
                                                 const TransformerOptions& options)
    : self_attn(width, heads, attention_of(options)),
      multihead_attn(width, heads, attention_of(options)),
      linear1(width, options.feedforward, {.bias = options.bias}),
      linear2(options.feedforward, width, {.bias = options.bias}),
      norm1(width, norm_of(options)),
      norm2(width, norm_of(options)),
      norm3(width, norm_of(options)),
      options_(options) {
  check_transformer("TransformerDecoderLayer", width, heads, options);
  add("self_attn", self_attn), add("multihead_attn", multihead_attn);
  add("linear1", linear1), add("linear2", linear2);
  add("norm1", norm1), add("norm2", norm2), add("norm3", norm3);
}

Tensors TransformerDecoderLayer::forward_all(const Tensors& inputs) {
  check_inputs(inputs, 2);
  return {decode(inputs[0], inputs[1], {})};
}

Tensor TransformerDecoderLayer::decode(const Tensor& given, const Tensor& memory, const AttentionMasks& masks,
                                       const AttentionMasks& memory_masks) {
  const Blocks blocks{options_, is_training()};
  const Tensor x = blocks.around(given, norm1, [&](const Tensor& each) { return self_attn.attend(each, masks); });
  const Tensor y = blocks.around(
      x, norm2, [&](const Tensor& each) { return multihead_attn.attend(each, memory, memory, memory_masks); });
  return blocks.around(y, norm3, [&](const Tensor& each) { return blocks.feed_forward(each, linear1, linear2); });
}

std::string TransformerDecoderLayer::extra_repr() const { return text_of_options(linear2.weight.shape()[0], options_); }

TransformerEncoder::TransformerEncoder(std::int64_t count, std::int64_t width, std::int64_t heads,
                                       const TransformerOptions& options)
    : norm(width, norm_of(options)), has_norm_(options.final_norm) {
  check_sizes("TransformerEncoder", {count});
  for (std::int64_t i = 0; i < count; ++i) layers.append(width, heads, options);
  add("layers", layers);
  if (has_norm_) add("norm", norm);
}

Tensor TransformerEncoder::encode(const Tensor& given, const AttentionMasks& masks) {
  Tensor x = given;
  for (TransformerEncoderLayer& layer : layers) x = layer.encode(x, masks);
  return has_norm_ ? norm(x) : x;
}

TransformerDecoder::TransformerDecoder(std::int64_t count, std::int64_t width, std::int64_t heads,
                                       const TransformerOptions& options)
    : norm(width, norm_of(options)), has_norm_(options.final_norm) {
  check_sizes("TransformerDecoder", {count});
  for (std::int64_t i = 0; i < count; ++i) layers.append(width, heads, options);
  add("layers", layers);
  if (has_norm_) add("norm", norm);
}

Tensors TransformerDecoder::forward_all(const Tensors& inputs) {
  check_inputs(inputs, 2);
  return {decode(inputs[0], inputs[1], {})};
}

Tensor TransformerDecoder::decode(const Tensor& given, const Tensor& memory, const AttentionMasks& masks,
                                  const AttentionMasks& memory_masks) {
  Tensor x = given;
  for (TransformerDecoderLayer& layer : layers) x = layer.decode(x, memory, masks, memory_masks);
  return has_norm_ ? norm(x) : x;
}

}  // namespace lockstep::nn
