// A Transpose is held back until a node needs its result: elementwise nodes read what was to be transposed, and their
// results are transposed instead. So the transposes around the layers of an image network meet and cancel.
//
//   Conv -> (N, C, H, W) to (N, H, W, C) -> Relu -> (N, H, W, C) to (N, C, H, W) -> Conv   becomes   Conv -> Relu ->
//   Conv
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "src/models/onnx/graph_passes.h"

namespace lockstep::onnx {

namespace {

using Order = std::vector<std::int64_t>;

const std::set<std::string> kElementwise = {
    "Relu", "Sigmoid", "Tanh", "Erf", "Clip", "LeakyRelu", "Elu",  "HardSwish", "HardSigmoid", "Softplus",
    "Mish", "Gelu",    "Abs",  "Neg", "Exp",  "Log",       "Sqrt", "Sin",       "Cos",         "Floor",
    "Ceil", "Round",   "Sign", "Add", "Sub",  "Mul",       "Div",  "Pow",       "Max",         "Min"};

// The dimensions `order` of a value.
struct HeldTranspose {
  std::string source;
  Order order;
};

bool is_identity(const Order& order) {
  for (std::size_t d = 0; d < order.size(); ++d)
    if (order[d] != static_cast<std::int64_t>(d)) return false;
  return true;
}

Initializer transposed(const Initializer& from, const Order& order, const std::string& name) {
  const std::size_t dims = order.size(), count = [&] {
    std::size_t product = 1;
    for (const std::int64_t extent : from.dims) product *= static_cast<std::size_t>(extent);
    return product;
  }();
  Initializer to = from;
  to.name = name;
  std::vector<std::size_t> strides(dims, 1), steps(dims);
  for (std::size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * static_cast<std::size_t>(from.dims[d]);
  for (std::size_t d = 0; d < dims; ++d) {
    const auto source = static_cast<std::size_t>(order[d]);
    to.dims[d] = from.dims[source], steps[d] = strides[source];
  }
  const std::size_t element = count == 0 ? 0 : from.bytes.size() / count;
  auto memory = std::make_shared<std::vector<std::byte>>(from.bytes.size());
  std::vector<std::size_t> index(dims, 0);
  for (std::size_t at = 0, place = 0; at < count; ++at) {
    std::memcpy(memory->data() + at * element, from.bytes.data() + place * element, element);
    for (std::size_t d = dims; d-- > 0;) {
      place += steps[d];
      if (++index[d] < static_cast<std::size_t>(to.dims[d])) break;
      place -= index[d] * steps[d], index[d] = 0;
    }
  }
  to.bytes = *memory;
  to.memory = memory;
  return to;
}

class TransposeJoiner {
 public:
  explicit TransposeJoiner(Graph& graph) : graph_(graph) {
    for (std::size_t i = 0; i < graph.initializers.size(); ++i) initializer_at_[graph.initializers[i].name] = i;
    for (const GraphNode& node : graph.nodes)
      for (const std::string& input : node.inputs)
        if (node.op != "Transpose") read_as_it_is_.insert(input);
    for (const ValueInfo& output : graph.outputs) read_as_it_is_.insert(output.name);
  }

  void join() {
    for (GraphNode& node : graph_.nodes) {
      if (node.op == "Transpose")
        hold(node);
      else if (node.op == "Identity" && held_.count(node.inputs[0]) != 0)
        held_[node.outputs[0]] = held_[node.inputs[0]];
      else if (!moves_before(node))
        keep(node);
    }
    for (const ValueInfo& output : graph_.outputs) value(output.name);
    graph_.nodes = std::move(nodes_);
  }

 private:
  static const Order& order_of(const GraphNode& node) { return std::get<Order>(node.attributes[0].second); }

  void hold(const GraphNode& node) {
    HeldTranspose joined{node.inputs[0], order_of(node)};
    if (const auto before = held_.find(node.inputs[0]); before != held_.end()) {
      joined.source = before->second.source;
      for (std::int64_t& dim : joined.order) dim = before->second.order[static_cast<std::size_t>(dim)];
    }
    held_[node.outputs[0]] = joined;
  }

  // The name of a value that exists; makes it if it is held back.
  std::string value(const std::string& name) {
    const auto held = held_.find(name);
    if (held == held_.end()) return name;
    const auto& [source, order] = held->second;
    if (is_output(name)) {
      if (outputs_made_.insert(name).second)
        nodes_.push_back(is_identity(order) ? identity(name, source) : transpose(name, source, order));
      return name;
    }
    if (is_identity(order)) return source;
    std::string& made = made_[{source, order}];
    if (!made.empty()) return made;
    const auto initializer = initializer_at_.find(source);
    if (initializer != initializer_at_.end() && read_as_it_is_.count(source) == 0) {
      made = source + ".transposed";
      while (!folded_names_.insert(made).second) made += "_";
      graph_.initializers.push_back(transposed(graph_.initializers[initializer->second], order, made));
    } else {
      made = name;
      nodes_.push_back(transpose(name, source, order));
    }
    return made;
  }

  static GraphNode identity(const std::string& name, const std::string& source) {
    return {"Identity", name, {source}, {name}, {}};
  }
  static GraphNode transpose(const std::string& name, const std::string& source, const Order& order) {
    return {"Transpose", name, {source}, {name}, {{"perm", order}}};
  }

  bool is_output(const std::string& name) const {
    return std::any_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [&](const ValueInfo& output) { return output.name == name; });
  }

  void keep(GraphNode& node) {
    for (std::string& input : node.inputs) input = value(input);
    nodes_.push_back(std::move(node));
  }

  // An operand that is not transposed, for a node that is moved before a transpose with this order: a scalar as it is,
  // and a vector for the last dimension in the shape for that dimension's place before.
  std::optional<std::string> constant_before(const std::string& name, const Order& order) {
    if (name.empty()) return name;
    const auto found = initializer_at_.find(name);
    if (found == initializer_at_.end()) return std::nullopt;
    const Initializer constant = graph_.initializers[found->second];
    if (constant.dims.empty()) return name;
    if (constant.dims.size() != 1) return std::nullopt;
    const auto behind = order.size() - 1 - static_cast<std::size_t>(order.back());
    const std::string shaped_name = name + ".before_" + std::to_string(behind);
    if (shaped_.insert(shaped_name).second) {
      Initializer shaped = constant;
      shaped.name = shaped_name;
      shaped.dims.insert(shaped.dims.end(), behind, 1);
      graph_.initializers.push_back(std::move(shaped));
    }
    return shaped_name;
  }

  bool moves_before(GraphNode& node) {
    const bool is_concat = node.op == "Concat";
    if (kElementwise.count(node.op) == 0 && !is_concat) return false;
    const HeldTranspose* first = nullptr;
    for (const std::string& input : node.inputs) {
      const auto held = held_.find(input);
      if (held == held_.end()) continue;
      if (first != nullptr && held->second.order != first->order) return false;
      first = &held->second;
    }
    if (first == nullptr) return false;
    const Order order = first->order;
    std::vector<std::string> inputs;
    for (const std::string& input : node.inputs) {
      const auto held = held_.find(input);
      if (held == held_.end() && is_concat) return false;
      const auto moved = held != held_.end() ? held->second.source : constant_before(input, order);
      if (!moved) return false;
      inputs.push_back(*moved);
    }
    const std::string result = node.outputs[0], before = result + ".before";
    node.inputs = std::move(inputs), node.outputs = {before}, node.name = before;
    if (is_concat) {
      auto& axis = std::get<std::int64_t>(node.attributes[0].second);
      axis = order[static_cast<std::size_t>(axis)];
    }
    nodes_.push_back(std::move(node));
    held_[result] = {before, order};
    return true;
  }

  Graph& graph_;
  std::vector<GraphNode> nodes_;
  std::map<std::string, HeldTranspose> held_;
  std::map<std::string, std::size_t> initializer_at_;
  std::map<std::pair<std::string, Order>, std::string> made_;
  std::set<std::string> read_as_it_is_, outputs_made_, folded_names_, shaped_;
};

}  // namespace

void join_transposes(Graph& graph) { TransposeJoiner(graph).join(); }

void remove_unused(Graph& graph) {
  std::set<std::string> used;
  for (const ValueInfo& output : graph.outputs) used.insert(output.name);
  std::vector<bool> is_used(graph.nodes.size(), false);
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const GraphNode& node = graph.nodes[i];
    is_used[i] = std::any_of(node.outputs.begin(), node.outputs.end(),
                             [&](const std::string& output) { return used.count(output) != 0; });
    if (is_used[i]) used.insert(node.inputs.begin(), node.inputs.end());
  }
  std::vector<GraphNode> kept;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (is_used[i]) kept.push_back(std::move(graph.nodes[i]));
  graph.nodes = std::move(kept);
  std::erase_if(graph.initializers, [&](const Initializer& each) { return used.count(each.name) == 0; });
}

}  // namespace lockstep::onnx
