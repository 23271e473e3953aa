// Transposes of an ONNX graph: which ones cancel.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/models/onnx/graph_passes.h"

namespace lockstep::models {
namespace {

onnx::GraphNode transpose_node(const std::string& from, const std::string& to, const std::vector<std::int64_t>& order) {
  return {"Transpose", to, {from}, {to}, {{"perm", order}}};
}

std::vector<std::string> operators_of(const onnx::Graph& graph) {
  std::vector<std::string> names;
  for (const onnx::GraphNode& node : graph.nodes) names.push_back(node.op);
  return names;
}

TEST(Transposes, CancelThroughElementwiseNodes) {
  const std::vector<std::int64_t> first = {0, 3, 1, 2}, last = {0, 2, 3, 1};
  onnx::Graph graph;
  graph.outputs = {{"y", onnx::ElementType::kFloat, {}}};
  graph.nodes = {transpose_node("x", "a", first), {"Conv", "b", {"a"}, {"b"}, {}},     transpose_node("b", "c", last),
                 {"Relu", "d", {"c"}, {"d"}, {}}, {"Add", "e", {"d", "c"}, {"e"}, {}}, transpose_node("e", "f", first),
                 {"Conv", "g", {"f"}, {"g"}, {}}, transpose_node("g", "y", last)};
  onnx::join_transposes(graph);
  EXPECT_EQ(operators_of(graph), (std::vector<std::string>{"Transpose", "Conv", "Relu", "Add", "Conv", "Transpose"}));
  EXPECT_EQ(graph.nodes.back().outputs[0], "y");
}

TEST(Transposes, StayWhereANodeNeedsTheOrder) {
  const std::vector<std::int64_t> order = {1, 0};
  onnx::Graph graph;
  graph.outputs = {{"y", onnx::ElementType::kFloat, {}}, {"a", onnx::ElementType::kFloat, {}}};
  graph.nodes = {
      transpose_node("x", "a", order), {"Softmax", "b", {"a"}, {"b"}, {}}, {"Mul", "y", {"b", "a"}, {"y"}, {}}};
  onnx::join_transposes(graph);
  EXPECT_EQ(operators_of(graph), (std::vector<std::string>{"Transpose", "Softmax", "Mul"}));
}

}  // namespace
}  // namespace lockstep::models
