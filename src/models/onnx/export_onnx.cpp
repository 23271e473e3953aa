#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/core/version.h"
#include "lockstep/models/onnx.h"
#include "src/models/onnx/converters.h"
#include "src/models/onnx/graph_passes.h"
#include "src/models/onnx/write_onnx.h"

namespace lockstep::onnx {

namespace {

constexpr int kOldestOpset = 17, kNewestOpset = 20;

void check_call(const nn::Module& module, const Tensors& inputs, const std::string& path, const OnnxOptions& options) {
  if (path.empty()) throw InvalidArgument("export_onnx: the file's name is empty");
  if (options.opset < kOldestOpset || options.opset > kNewestOpset)
    throw InvalidArgument("export_onnx: opset {} is not one of {} to {}", options.opset, kOldestOpset, kNewestOpset);
  if (inputs.empty()) throw InvalidArgument("export_onnx: got no example inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].shape().dims() == 0 || inputs[i].shape()[0] < 1)
      throw InvalidArgument("export_onnx: example input {} must have samples, (N, ...), got {}", i,
                            inputs[i].defined() ? inputs[i].shape().text() : "an undefined tensor");
    if (inputs[i].shape()[0] != inputs[0].shape()[0])
      throw InvalidArgument(
          "export_onnx: the example inputs have different numbers of samples: {} in input 0, {} in "
          "input {}",
          inputs[0].shape()[0], inputs[i].shape()[0], i);
    element_type_of(fmt::format("example input {}", i), inputs[i].dtype());
  }
  for (const NamedTensor& each : module.state_dict())
    if (each.tensor.dtype() == DType::kFloat16 || each.tensor.dtype() == DType::kBFloat16)
      element_type_of("parameter '" + each.name + "'", each.tensor.dtype());
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    throw FileError("export_onnx: {}: cannot be made: there is no folder {}", path, folder.string());
}

// The given names, or `stem` for one value and stem_0, stem_1, ... for several.
std::vector<std::string> names_of(const char* stem, std::vector<std::string> names, std::size_t count) {
  if (names.empty())
    for (std::size_t i = 0; i < count; ++i) names.push_back(count == 1 ? stem : fmt::format("{}_{}", stem, i));
  if (names.size() != count)
    throw InvalidArgument("export_onnx: got {} {} names, but the module has {} {}s", names.size(), stem, count, stem);
  return names;
}

void check_names(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
                 const std::string& batch) {
  std::set<std::string> seen;
  for (const auto* names : {&inputs, &outputs})
    for (const std::string& name : *names)
      if (name.empty() || !seen.insert(name).second)
        throw InvalidArgument("export_onnx: the name '{}' of an input or output is empty or given twice", name);
  if (batch.empty()) throw InvalidArgument("export_onnx: batch_name is empty");
}

ValueInfo info_of_value(const std::string& name, DType type, const Extents& extents, const std::string& batch) {
  ValueInfo info{name, element_type_of("'" + name + "'", type), {}};
  for (const Extent& each : extents) {
    const bool is_batch = each == Extent{1, 0};
    info.dims.push_back({each.is_static() ? each.fixed : -1, is_batch ? batch : ""});
  }
  return info;
}

void convert_steps(const TracedModel& model, ValueNames& names, GraphBuilder& builder) {
  for (std::size_t i = 0; i < model.steps.size(); ++i) {
    const TracedStep& step = model.steps[i];
    element_type_of("the result of " + step.text(), step.first_result.dtype());
    builder.begin_step(step.path, step.op);
    Conversion conversion(model, i, names, builder);
    operator_of(step)->convert(conversion);
  }
}

void add_outputs(const TracedModel& model, const std::vector<std::string>& output_names, const std::string& batch,
                 ValueNames& names, GraphBuilder& builder) {
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    const Operand& output = model.outputs[i];
    const std::string what = "output '" + output_names[i] + "'";
    const std::string value = names.name(what, output);
    builder.graph.nodes.push_back({"Identity", output_names[i], {value}, {output_names[i]}, {}});
    builder.graph.outputs.push_back(
        info_of_value(output_names[i], output.first.dtype(),
                      extents_of(what, output.first.shape(), output.second.shape(), model.sizes), batch));
  }
}

// A value that only the Identity of an output reads gets the output's name itself.
void drop_identities(Graph& graph) {
  std::map<std::string, int> readers;
  std::map<std::string, std::string*> made;
  for (GraphNode& node : graph.nodes) {
    for (const std::string& input : node.inputs) ++readers[input];
    for (std::string& output : node.outputs) made[output] = &output;
  }
  std::set<std::string> outputs;
  for (const ValueInfo& output : graph.outputs) outputs.insert(output.name);
  std::erase_if(graph.nodes, [&](const GraphNode& node) {
    const auto value = node.op == "Identity" ? made.find(node.inputs[0]) : made.end();
    if (value == made.end() || outputs.count(node.outputs[0]) == 0 || readers[node.inputs[0]] > 1) return false;
    if (outputs.count(*value->second) != 0) return false;
    *value->second = node.outputs[0];
    return true;
  });
}

void check_dependence(const Graph& graph) {
  std::set<std::string> read, dependent;
  for (const ValueInfo& input : graph.inputs) dependent.insert(input.name);
  for (const GraphNode& node : graph.nodes) {
    if (node.op == "Shape") continue;  // the number of samples alone
    read.insert(node.inputs.begin(), node.inputs.end());
    if (std::any_of(node.inputs.begin(), node.inputs.end(),
                    [&](const std::string& input) { return dependent.count(input) != 0; }))
      dependent.insert(node.outputs.begin(), node.outputs.end());
  }
  for (const ValueInfo& output : graph.outputs)
    if (dependent.count(output.name) == 0)
      throw InvalidArgument(
          "export_onnx: output '{}' depends on no input as far as operators have recorded: a module on several "
          "devices, "
          "span(), clone() or copy_from() leave no record",
          output.name);
  for (const ValueInfo& input : graph.inputs)
    if (read.count(input.name) == 0)
      throw InvalidArgument(
          "export_onnx: no output depends on input '{}' as far as operators have recorded: leave it out", input.name);
}

}  // namespace

static void export_module(nn::Module& module, const Tensors& example_inputs, const std::string& path,
                          const OnnxOptions& options) {
  check_call(module, example_inputs, path, options);
  const std::vector<std::string> input_names = names_of("input", options.input_names, example_inputs.size());
  const TracedModel model = trace_model(module, example_inputs);
  const std::vector<std::string> output_names = names_of("output", options.output_names, model.outputs.size());
  check_names(input_names, output_names, options.batch_name);
  GraphBuilder builder(options.opset, input_names[0]);
  Graph& graph = builder.graph;
  for (const auto* names : {&input_names, &output_names})
    for (const std::string& name : *names) builder.unique_name(name);
  graph.ir_version = options.opset < 19 ? 8 : 9;
  graph.name = module.kind();
  graph.producer = "Lockstep";
  graph.producer_version = LOCKSTEP_VERSION;
  for (std::size_t i = 0; i < input_names.size(); ++i) {
    const Tensor &first = model.first_inputs[i], &second = model.second_inputs[i];
    graph.inputs.push_back(info_of_value(input_names[i], first.dtype(),
                                         extents_of(input_names[i], first.shape(), second.shape(), model.sizes),
                                         options.batch_name));
  }
  ValueNames names(module, model, builder, input_names);
  convert_steps(model, names, builder);
  add_outputs(model, output_names, options.batch_name, names, builder);
  remove_unused(graph);
  join_transposes(graph);
  remove_unused(graph);
  check_dependence(graph);
  drop_identities(graph);
  write_onnx(graph, path, options.most_bytes_in_file);
}

}  // namespace lockstep::onnx

namespace lockstep {

void export_onnx(nn::Module& module, const Tensors& example_inputs, const std::string& path,
                 const OnnxOptions& options) {
  onnx::export_module(module, example_inputs, path, options);
}

}  // namespace lockstep
