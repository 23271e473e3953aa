#include "src/models/onnx/converters.h"

namespace lockstep::onnx {

namespace {

// The rows of `gates` blocks of `width` rows, in another order: weights and biases of the gates.
std::string in_order(Conversion& c, const std::string& weight, const std::vector<std::int64_t>& order,
                     std::int64_t width) {
  GraphBuilder::Ints rows;
  for (const std::int64_t gate : order)
    for (std::int64_t row = 0; row < width; ++row) rows.push_back(gate * width + row);
  return c.to.add("Gather", {weight, c.to.ints(rows)}, {{"axis", std::int64_t{0}}});
}

}  // namespace

// One layer and direction. ONNX has a first extent of weights and states for the direction.
void convert_recurrent(Conversion& c) {
  const bool is_lstm = c.op() == "lstm_layer";
  if (c.integer("has_lengths") != 0)
    c.refuse("lengths of samples are numbers of the example: export it without lengths, with samples of one length");
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
  if (!c.is_zeros(1)) operands[5] = with_direction(c.in(1));
  if (is_lstm && !c.is_zeros(2)) operands.push_back(with_direction(c.in(2)));
  GraphBuilder::AttributeList how = {{"hidden_size", width},
                                     {"direction", std::string(c.integer("reversed") != 0 ? "reverse" : "forward")}};
  if (!is_lstm) how.emplace_back("linear_before_reset", std::int64_t{1});
  while (operands.back().empty()) operands.pop_back();
  if (!is_lstm) return c.result(c.to.add("Squeeze", {c.to.add("GRU", operands, how), c.to.ints({1})}));
  const std::vector<std::string> results = c.to.add_with_outputs("LSTM", operands, how, 3);
  const std::string states = c.to.add("Squeeze", {results[0], c.to.ints({1})});
  c.result(c.to.add("Concat", {states, results[2]}, {{"axis", std::int64_t{0}}}));
}

}  // namespace lockstep::onnx
