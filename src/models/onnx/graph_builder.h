// Builds a graph node by node. Values are named after the step that makes them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/elementwise_functions.h"
#include "lockstep/tensor/tensor.h"
#include "src/models/onnx/onnx_graph.h"
#include "src/models/onnx/traced_model.h"

namespace lockstep::onnx {

// Throws InvalidArgument that begins with `what` for a type that is not written: 16-bit and float64.
ElementType element_type_of(const std::string& what, DType type);

class GraphBuilder {
 public:
  using Ints = std::vector<std::int64_t>;
  using AttributeList = std::vector<std::pair<std::string, NodeAttribute>>;

  // `first_input` has the number of samples as its first extent.
  GraphBuilder(int opset, std::string first_input) : first_input_(std::move(first_input)) { graph.opset = opset; }

  Graph graph;
  int opset() const { return graph.opset; }

  // The names of the nodes and values from now on begin with this.
  void begin_step(const std::string& path, const std::string& op);

  // A name that no value has: `stem`, or with a number.
  std::string unique_name(const std::string& stem);

  // Adds a node with one output, and returns the output's name.
  std::string add(const std::string& op, std::vector<std::string> inputs, AttributeList attributes = {});
  // The same for a node with `count` outputs.
  std::vector<std::string> add_with_outputs(const std::string& op, std::vector<std::string> inputs,
                                            AttributeList attributes, std::size_t count);

  void add_initializer(const std::string& name, const Tensor& values);
  // Constants that have the same values share one initializer.
  std::string ints(const Ints& values);     // int64, one dimension
  std::string integer(std::int64_t value);  // a scalar
  std::string number(float value);          // a scalar
  std::string floats(const std::vector<float>& values);
  std::string mask(const std::vector<std::uint8_t>& values, const Ints& dims);  // bool

  std::string transpose(const std::string& x, const Ints& order);
  std::string reshape(const std::string& x, const Extents& from, const Extents& to);
  std::string reduce(const std::string& op, const std::string& x, const Ints& dims, bool keeps_dims);
  // A value as a shape: int64, one dimension.
  std::string as_shape(const Extents& extents);
  // The product of extents as a float scalar.
  std::string count_of(const Extents& extents);
  std::string expand(const std::string& x, const Extents& from, const Extents& to);
  std::string cast(const std::string& x, ElementType type);
  // Masks are uint8 in Lockstep, and bool in ONNX.
  std::string as_mask(const std::string& bools);
  std::string as_bool(const std::string& mask);
  // (N, extent) bool: position < lengths[n].
  std::string length_mask(const std::string& lengths, std::int64_t extent);
  std::string step_mask(const std::string& lengths, std::int64_t steps);  // the same as (steps, N, 1)

 private:
  std::string extent(const Extent& extent);  // int64, of shape (1)
  std::string shared(ElementType type, const Ints& dims, const std::string& bytes);

  std::string first_input_, step_, samples_;
  std::map<std::string, int> counts_;
  std::map<std::pair<int, std::string>, std::string> constants_;
  std::map<std::string, std::string> bool_of_, extents_;
};

}  // namespace lockstep::onnx
