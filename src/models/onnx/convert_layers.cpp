#include <numeric>

#include "src/models/onnx/converters.h"

namespace lockstep::onnx {

namespace {

using Ints = GraphBuilder::Ints;

std::string last_two_swapped(GraphBuilder& to, const std::string& x, std::size_t dims) {
  Ints order(dims);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[dims - 1], order[dims - 2]);
  return to.transpose(x, order);
}

// x (..., I) times weight (O, I) transposed, plus bias.
std::string linear_layer(GraphBuilder& to, const std::string& x, std::size_t dims, const std::string& weight,
                         const std::string& bias) {
  if (dims == 2) {
    std::vector<std::string> operands = {x, weight};
    if (!bias.empty()) operands.push_back(bias);
    return to.add("Gemm", operands, {{"transB", std::int64_t{1}}});
  }
  const std::string product = to.add("MatMul", {x, to.transpose(weight, {1, 0})});
  return bias.empty() ? product : to.add("Add", {product, bias});
}

// The layers below compute images with channels before pixels.
std::string channels_first(GraphBuilder& to, const std::string& x) { return to.transpose(x, {0, 3, 1, 2}); }
std::string channels_last(GraphBuilder& to, const std::string& x) { return to.transpose(x, {0, 2, 3, 1}); }

std::string convolution(Conversion& c) {
  // A sequence is an image of height 1, and its filters are (O, K, C).
  std::string weight = c.in(1);
  if (c.op() == "conv1d") weight = c.to.add("Unsqueeze", {weight, c.to.ints({1})});
  std::vector<std::string> operands = {channels_first(c.to, c.in(0)), channels_first(c.to, weight)};
  if (c.has(2)) operands.push_back(c.in(2));
  const Extents filters = c.extents(1);
  const Ints kernel =
      filters.size() == 3 ? Ints{1, c.fixed(filters[1])} : Ints{c.fixed(filters[1]), c.fixed(filters[2])};
  const std::string y = c.to.add("Conv", operands,
                                 {{"kernel_shape", kernel},
                                  {"strides", c.integers("stride")},
                                  {"pads", c.integers("padding")},
                                  {"dilations", c.integers("dilation")},
                                  {"group", c.integer("groups")}});
  return channels_last(c.to, c.integer("relu") != 0 ? c.to.add("Relu", {y}) : y);
}

std::string pooling(Conversion& c) {
  GraphBuilder::AttributeList attributes = {
      {"kernel_shape", c.integers("window")}, {"strides", c.integers("stride")}, {"pads", c.integers("padding")}};
  const bool is_max = c.op() == "max_pool2d";
  if (!is_max) attributes.emplace_back("count_include_pad", c.integer("count_padding"));
  return channels_last(c.to, c.to.add(is_max ? "MaxPool" : "AveragePool", {channels_first(c.to, c.in(0))}, attributes));
}

// ONNX divides alpha by the number of channels.
std::string response_norm(Conversion& c) {
  const std::int64_t size = 2 * c.integer("radius") + 1;
  const Extents extents = c.extents(0);
  std::string x = c.in(0);
  // Everything but the channels is alike: the rows are samples, whatever their number.
  if (extents.size() != 4) x = c.to.add("Reshape", {x, c.to.ints({-1, 1, 1, c.fixed(extents.back())})});
  const std::string y = c.to.add("LRN", {channels_first(c.to, x)},
                                 {{"size", size},
                                  {"alpha", c.number("alpha") * static_cast<float>(size)},
                                  {"beta", c.number("beta")},
                                  {"bias", c.number("bias")}});
  const std::string z = channels_last(c.to, y);
  return extents.size() == 4 ? z : c.to.reshape(z, {}, extents);
}

std::string rms_norm_value(Conversion& c) {
  const std::string x = c.in(0), eps = c.to.number(c.number("eps"));
  Ints dims;
  for (std::int64_t d = c.integer("dims"); d > 0; --d) dims.push_back(-d);
  const std::string squares = c.to.reduce("ReduceMean", c.to.add("Mul", {x, x}), dims, true);
  const std::string y = c.to.add("Div", {x, c.to.add("Sqrt", {c.to.add("Add", {squares, eps})})});
  return c.has(1) ? c.to.add("Mul", {y, c.in(1)}) : y;
}

std::string group_norm_value(Conversion& c) {
  const std::int64_t groups = c.integer("groups");
  const Extents extents = c.extents(0);
  const std::int64_t channels = c.fixed(extents.back());
  std::int64_t pixels = 1;
  for (std::size_t d = 1; d + 1 < extents.size(); ++d) pixels *= c.fixed(extents[d]);
  const Extents in_groups = {extents[0], {0, pixels}, {0, groups}, {0, channels / groups}};
  const std::string x = c.to.reshape(c.in(0), extents, in_groups);
  const std::string offset = c.to.add("Sub", {x, c.to.reduce("ReduceMean", x, {1, 3}, true)});
  const std::string variance = c.to.reduce("ReduceMean", c.to.add("Mul", {offset, offset}), {1, 3}, true);
  const std::string deviation = c.to.add("Sqrt", {c.to.add("Add", {variance, c.to.number(c.number("eps"))})});
  std::string y = c.to.reshape(c.to.add("Div", {offset, deviation}), in_groups, extents);
  if (c.has(1)) y = c.to.add("Mul", {y, c.in(1)});
  return c.has(2) ? c.to.add("Add", {y, c.in(2)}) : y;
}

std::string ones(Conversion& c, std::int64_t count) {
  return c.to.floats(std::vector<float>(static_cast<std::size_t>(count), 1.0F));
}

// The rows of `gates` blocks of `width` rows, in another order: weights and biases of the gates.
std::string in_order(Conversion& c, const std::string& weight, const std::vector<std::int64_t>& order,
                     std::int64_t width) {
  GraphBuilder::Ints rows;
  for (const std::int64_t gate : order)
    for (std::int64_t row = 0; row < width; ++row) rows.push_back(gate * width + row);
  return c.to.add("Gather", {weight, c.to.ints(rows)}, {{"axis", std::int64_t{0}}});
}

}  // namespace

void convert_product(Conversion& c) {
  if (c.op() == "linear") {
    const std::string y = linear_layer(c.to, c.in(0), c.shape(0).dims(), c.in(1), c.in(2));
    return c.result(c.integer("relu") != 0 ? c.to.add("Relu", {y}) : y);
  }
  if (c.op() == "feed_forward") {
    const std::size_t dims = c.shape(0).dims();
    const std::string before = linear_layer(c.to, c.in(0), dims, c.in(1), c.in(2));
    const std::string hidden = unary_function(c.to, static_cast<UnaryFunction>(c.integer("gelu")), 0, 0, before);
    return c.result(linear_layer(c.to, hidden, dims, c.in(3), c.in(4)));
  }
  std::string a = c.in(0), b = c.in(1);
  if (c.integer("transpose_a") != 0) a = last_two_swapped(c.to, a, c.shape(0).dims());
  if (c.integer("transpose_b") != 0) b = last_two_swapped(c.to, b, c.shape(1).dims());
  c.result(c.to.add("MatMul", {a, b}));
}

void convert_softmax(Conversion& c) {
  c.result(c.to.add(c.op() == "softmax" ? "Softmax" : "LogSoftmax", {c.in(0)}, {{"axis", std::int64_t{-1}}}));
}

void convert_norm(Conversion& c) {
  if (c.op() == "rms_norm") return c.result(rms_norm_value(c));
  if (c.op() == "group_norm") return c.result(group_norm_value(c));
  const std::int64_t dims = c.integer("dims");
  const Extents extents = c.extents(0);
  std::string weight;
  if (c.has(1)) {
    weight = c.in(1);
  } else {
    const Extents wanted(extents.end() - dims, extents.end());
    std::int64_t count = 1;
    for (const Extent& each : wanted) count *= c.fixed(each);
    weight = c.to.reshape(ones(c, count), {{0, count}}, wanted);
  }
  std::vector<std::string> operands = {c.in(0), weight};
  if (c.has(2)) operands.push_back(c.in(2));
  c.result(c.to.add("LayerNormalization", operands, {{"axis", -dims}, {"epsilon", c.number("eps")}}));
}

void convert_batch_norm(Conversion& c) {
  if (c.integer("constant_statistics") == 0)
    c.refuse("it normalises by the batch's statistics, as in training: pass is_training() to batch_norm()");
  const std::size_t dims = c.shape(0).dims();
  if (dims < 2) c.refuse("x has one dimension, expected (N, ..., C)");
  const std::int64_t channels = c.fixed(c.extents(0).back());
  const std::string weight = c.has(1) ? c.in(1) : ones(c, channels);
  const std::string bias =
      c.has(2) ? c.in(2) : c.to.floats(std::vector<float>(static_cast<std::size_t>(channels), 0.0F));
  Ints first(dims), last(dims);  // orders with the channels after the samples, and at the end
  std::iota(first.begin(), first.end(), -1), first[0] = 0, first[1] = static_cast<std::int64_t>(dims) - 1;
  std::iota(last.begin(), last.end(), 1), last[0] = 0, last[dims - 1] = 1;
  std::string x = c.in(0);
  if (dims > 2) x = c.to.transpose(x, first);
  std::string y =
      c.to.add("BatchNormalization", {x, weight, bias, c.saved(1), c.saved(2)}, {{"epsilon", c.number("eps")}});
  if (c.integer("relu") != 0) y = c.to.add("Relu", {y});
  c.result(dims > 2 ? c.to.transpose(y, last) : y);
}

void convert_image_layer(Conversion& c) {
  if (c.op() == "conv2d" || c.op() == "conv1d") return c.result(convolution(c));
  if (c.op() == "local_response_norm") return c.result(response_norm(c));
  c.result(pooling(c));
}

// One layer and direction. ONNX has a first extent of weights and states for the direction. Behind a sample's length
// its states are 0, where Lockstep's are the last valid one, or the initial one of a sample without steps.
void convert_recurrent(Conversion& c) {
  const bool is_lstm = c.op() == "lstm_layer", has_lengths = c.has_lengths("lengths");
  const std::size_t first_weight = is_lstm ? 3 : 2;
  const std::int64_t width = c.shape(first_weight + 1)[1];
  // Lockstep (and PyTorch): i, f, g, o and r, z, n. ONNX: i, o, f, g and z, r, n.
  const std::vector<std::int64_t> order =
      is_lstm ? std::vector<std::int64_t>{0, 3, 1, 2} : std::vector<std::int64_t>{1, 0, 2};
  const std::string first_axis = c.to.ints({0});
  const auto with_direction = [&](const std::string& value) { return c.to.add("Unsqueeze", {value, first_axis}); };
  const auto weight = [&](std::size_t at) { return in_order(c, c.in(at), order, width); };
  std::vector<std::string> operands = {
      c.in(0), with_direction(weight(first_weight)), with_direction(weight(first_weight + 1)), "", "", ""};
  if (c.has(first_weight + 2))
    operands[3] = with_direction(
        c.to.add("Concat", {weight(first_weight + 2), weight(first_weight + 3)}, {{"axis", std::int64_t{0}}}));
  const std::string lengths = has_lengths ? c.lengths("lengths") : "";
  if (has_lengths) operands[4] = c.to.cast(lengths, ElementType::kInt32);
  if (!c.is_zeros(1)) operands[5] = with_direction(c.in(1));
  if (is_lstm && !c.is_zeros(2)) operands.push_back(with_direction(c.in(2)));
  GraphBuilder::AttributeList how = {{"hidden_size", width},
                                     {"direction", std::string(c.integer("reversed") != 0 ? "reverse" : "forward")}};
  if (!is_lstm) how.emplace_back("linear_before_reset", std::int64_t{1});
  while (operands.back().empty()) operands.pop_back();
  // A final state (1, N, H), or the initial one.
  const auto final_state = [&](const std::string& state, std::size_t initial) {
    if (!has_lengths) return state;
    const std::string has_steps =
        c.to.add("Unsqueeze", {c.to.add("Greater", {lengths, c.to.integer(0)}), c.to.ints({1})});
    return c.to.add("Where", {has_steps, state, c.is_zeros(initial) ? c.to.number(0) : c.in(initial)});
  };
  const std::vector<std::string> results = c.to.add_with_outputs(is_lstm ? "LSTM" : "GRU", operands, how,
                                                                 is_lstm       ? 3
                                                                 : has_lengths ? 2
                                                                               : 1);
  std::string states = c.to.add("Squeeze", {results[0], c.to.ints({1})});
  if (has_lengths)
    states = c.to.add("Where", {c.to.step_mask(lengths, c.shape(0)[0]), states, final_state(results[1], 1)});
  if (!is_lstm) return c.result(states);
  c.result(c.to.add("Concat", {states, final_state(results[2], 2)}, {{"axis", std::int64_t{0}}}));
}

}  // namespace lockstep::onnx
