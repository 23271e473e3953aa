#include "src/train/events/module_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/nn/module/forward_observer.h"

namespace lockstep::train::events {

namespace {

using nn::Module;

struct ModuleCall {
  const Module* module;
  Tensors inputs, outputs;  // kept alive, so that each has its own memory
};

struct GraphNode {
  std::string name, op;
  std::vector<std::size_t> inputs;
  std::map<std::string, Message> attributes;  // AttrValue messages
  bool is_taken = false;                      // whether another node has it as an input
};

bool begins_with(const std::string& text, const std::string& begin) {
  return text.compare(0, begin.size(), begin) == 0;
}

// Replaces characters other than letters, digits, '_', '-' and '.', which a part of a node's name may not have.
std::string part_of_name(const std::string& name) {
  constexpr const char* kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  std::string part = name;
  for (std::size_t at = 0; (at = part.find_first_not_of(kAllowed, at)) != std::string::npos;) part[at] = '_';
  return part;
}

Message attribute(const std::string& text) {
  constexpr int kS = 2;
  return Message().text(kS, text, Default::kWritten);
}

Message attribute(std::span<const Tensor> outputs) {
  constexpr int kList = 1, kShape = 7, kDim = 2, kSize = 1;
  Message shapes;
  for (const Tensor& output : outputs) {
    Message shape;
    if (output.defined())
      for (const std::int64_t extent : output.shape().extents()) shape.message(kDim, Message().integer(kSize, extent));
    shapes.message(kShape, shape);
  }
  return Message().message(kList, shapes);
}

void describe(const char* what, const std::vector<NamedTensor>& tensors, std::map<std::string, Message>& attributes) {
  for (const auto& [name, tensor] : tensors)
    attributes[fmt::format("{}.{}", what, name)] = attribute(
        tensor.defined() ? fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().text()) : "undefined");
}

std::map<std::string, Message> attributes_of(const Module& module, const std::vector<NamedTensor>& parameters,
                                             const std::vector<NamedTensor>& buffers) {
  std::map<std::string, Message> attributes;
  if (const std::string options = module.extra_repr(); !options.empty()) attributes["options"] = attribute(options);
  describe("parameter", parameters, attributes);
  describe("buffer", buffers, attributes);
  return attributes;
}

// Names end in '/', except the root's "".
void collect_boxes(const Module& module, const std::string& box, std::map<const Module*, std::string>& boxes) {
  boxes.emplace(&module, box);
  for (const auto& [name, child] : module.children()) collect_boxes(*child, box + part_of_name(name) + "/", boxes);
}

class GraphBuilder {
 public:
  explicit GraphBuilder(const Module& root) : root_(root) { collect_boxes(root, "", boxes_); }

  void add_inputs(const Tensors& inputs) {
    for (const Tensor& input : inputs) {
      const std::size_t node =
          add(inputs.size() == 1 ? "input" : fmt::format("input_{}", placeholders_), "Placeholder", {});
      nodes_[node].attributes["_output_shapes"] = attribute({&input, 1});
      remember({&input, 1}, node);
      ++placeholders_;
    }
  }

  void add_call(const ModuleCall& call) {
    const Module& module = *call.module;
    const auto found = boxes_.find(&module);
    const std::string box =
        found != boxes_.end() ? found->second : part_of_name(module.kind()) + "/";  // not a child of its parent's
    if (has_nodes(box)) {
      add_own_parameters(module, box);
      add_output_of_box(call, box);
      return;
    }
    std::vector<std::size_t> sources;
    for (const Tensor& input : call.inputs) add_sources(input, parent_of(box), sources);
    const std::size_t node = add_module(module, box, sources);
    nodes_[node].attributes["_output_shapes"] = attribute(call.outputs);
    remember(call.outputs, node);
  }

  void add_in_order(const Module& module) {
    const std::string& box = boxes_.at(&module);
    for (const auto& [name, child] : module.children()) add_in_order(*child);
    if (has_nodes(box))
      add_own_parameters(module, box);
    else
      last_ = add_module(module, box, last_ == kNone ? std::vector<std::size_t>{} : std::vector{last_});
  }

  Message graph() const {
    constexpr int kNode = 1, kVersions = 4;
    constexpr int kName = 1, kOp = 2, kInput = 3, kAttr = 5, kKey = 1, kValue = 2;
    constexpr int kProducer = 1;
    constexpr std::int64_t kProducerVersion = 22;  // of the format; the same as torch.utils.tensorboard's
    Message graph;
    for (const GraphNode& node : nodes_) {
      Message message;
      message.text(kName, node.name).text(kOp, node.op);
      for (const std::size_t input : node.inputs) message.text(kInput, nodes_[input].name, Default::kWritten);
      for (const auto& [key, value] : node.attributes)
        message.message(kAttr, Message().text(kKey, key).message(kValue, value));
      graph.message(kNode, message);
    }
    return graph.message(kVersions, Message().integer(kProducer, kProducerVersion));
  }

 private:
  static constexpr std::size_t kNone = SIZE_MAX;

  static std::string parent_of(const std::string& box) {
    const std::size_t slash = box.size() < 2 ? std::string::npos : box.rfind('/', box.size() - 2);
    return slash == std::string::npos ? "" : box.substr(0, slash + 1);
  }

  bool is_in(std::size_t node, const std::string& box) const {
    return node >= placeholders_ && begins_with(nodes_[node].name, box);
  }

  bool has_nodes(const std::string& box) const {
    for (std::size_t node = placeholders_; node < nodes_.size(); ++node)
      if (is_in(node, box)) return true;
    return false;
  }

  std::size_t add(const std::string& name, const std::string& op, const std::vector<std::size_t>& inputs) {
    std::string unique = name;
    for (int again = 1; !names_.insert(unique).second; ++again) unique = fmt::format("{}_{}", name, again);
    for (const std::size_t input : inputs) nodes_[input].is_taken = true;
    nodes_.push_back({unique, op, inputs, {}});
    return nodes_.size() - 1;
  }

  std::size_t add_module(const Module& module, const std::string& box, const std::vector<std::size_t>& inputs) {
    const std::string name = box.empty() ? part_of_name(module.kind()) : box.substr(0, box.size() - 1);
    const std::size_t node = add(name, module.kind(), inputs);
    nodes_[node].attributes = attributes_of(module, module.named_parameters(), module.named_buffers());
    return node;
  }

  // The parameters of a module with children get one separate node.
  void add_own_parameters(const Module& module, const std::string& box) {
    const std::string name = box + "parameters";
    if ((module.own_parameters().empty() && module.own_buffers().empty()) || names_.count(name) != 0) return;
    const std::size_t node = add(name, module.kind(), {});
    nodes_[node].attributes = attributes_of(module, module.own_parameters(), module.own_buffers());
    nodes_[node].is_taken = true;
  }

  // The result that the module's operators computed from its children's outputs; always added for the root.
  void add_output_of_box(const ModuleCall& call, const std::string& box) {
    const bool is_root = call.module == &root_;
    std::vector<std::size_t> sources;
    Tensors own;
    for (const Tensor& output : call.outputs) {
      if (!is_root && node_of(output) != kNone) continue;
      own.push_back(output);
      add_sources(output, box, sources);
    }
    if (own.empty()) return;
    const std::size_t node = add(box + "output", "Output", sources);
    nodes_[node].attributes["_output_shapes"] = attribute(own);
    if (!is_root) remember(own, node);
  }

  std::size_t node_of(const Tensor& tensor) const {
    const auto found = tensor.defined() ? makers_.find(tensor.buffer().data()) : makers_.end();
    return found == makers_.end() ? kNone : found->second;
  }

  // Keyed by memory, because a tensor may be seen again with another shape.
  void remember(std::span<const Tensor> tensors, std::size_t node) {
    for (const Tensor& tensor : tensors)
      if (tensor.defined() && tensor.buffer().data() != nullptr) makers_[tensor.buffer().data()] = node;
  }

  // Adds the node that made the tensor to `sources`. If an operator made it, adds all nodes in the box that no other
  // node has as an input, else the last node, else the inputs.
  void add_sources(const Tensor& tensor, const std::string& box, std::vector<std::size_t>& sources) {
    const auto add_once = [&](std::size_t node) {
      if (std::find(sources.begin(), sources.end(), node) == sources.end()) sources.push_back(node);
    };
    if (const std::size_t node = node_of(tensor); node != kNone) return add_once(node);
    bool any = false;
    for (std::size_t node = placeholders_; node < nodes_.size(); ++node)
      if (is_in(node, box) && !nodes_[node].is_taken) add_once(node), any = true;
    if (any) return;
    if (nodes_.size() > placeholders_) return add_once(nodes_.size() - 1);
    for (std::size_t node = 0; node < placeholders_; ++node) add_once(node);
  }

  const Module& root_;
  std::map<const Module*, std::string> boxes_;
  std::vector<GraphNode> nodes_;  // the inputs come first
  std::size_t placeholders_ = 0;
  std::set<std::string> names_;
  std::map<const std::byte*, std::size_t> makers_;
  std::size_t last_ = kNone;
};

}  // namespace

Message graph_of(const nn::Module& module) {
  GraphBuilder builder(module);
  builder.add_in_order(module);
  return builder.graph();
}

Message graph_of(nn::Module& module, std::span<const nn::InputSpec> inputs) {
  std::vector<ModuleCall> calls;  // children come before the module that called them, so the last one is of `module`
  nn::observe_forward(module, inputs,
                      [&](const Module& called, std::span<const Tensor> taken, std::span<const Tensor> given) {
                        calls.push_back({&called, {taken.begin(), taken.end()}, {given.begin(), given.end()}});
                      });
  GraphBuilder builder(module);
  builder.add_inputs(calls.back().inputs);
  for (const ModuleCall& call : calls) builder.add_call(call);
  return builder.graph();
}

}  // namespace lockstep::train::events
