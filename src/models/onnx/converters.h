// Every operator of Lockstep, with the function that writes it as operators of ONNX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/models/onnx/graph_builder.h"
#include "src/models/onnx/traced_model.h"

namespace lockstep::onnx {

class Conversion;

struct OnnxOperator {
  std::string_view name;
  void (*convert)(Conversion& to);  // null: `reason` says why there is none
  std::size_t saved = 0;            // the first saved tensors are operands, besides the inputs
  bool has_indices = false;         // the first saved tensor is a second result
  const char* reason = nullptr;
};
std::span<const OnnxOperator> onnx_operators();
const OnnxOperator* operator_of(const TracedStep& step);  // null: unknown

// Names of tensors in the graph.
class ValueNames {
 public:
  ValueNames(const nn::Module& module, const TracedModel& model, GraphBuilder& builder,
             std::vector<std::string> input_names);
  // Adds constants to the graph as they are read.
  std::string name(const std::string& reader, const Operand& operand);
  void set(std::size_t step, std::size_t output, const std::string& name) { results_[{step, output}] = name; }
  // The int64 input (N) with these values in both passes. Throws InvalidArgument unless there is one.
  std::string lengths(const std::string& reader, const std::vector<std::int64_t>& first,
                      const std::vector<std::int64_t>& second) const;

 private:
  std::string constant(const std::string& reader, const Operand& operand);

  const TracedModel& model_;
  GraphBuilder& builder_;
  std::vector<std::string> input_names_;
  std::map<std::pair<std::size_t, std::size_t>, std::string> results_;
  using MemoryAndShape = std::pair<const void*, std::string>;
  std::map<std::pair<MemoryAndShape, MemoryAndShape>, std::string> constants_;  // of both passes
  std::map<MemoryAndShape, std::string> parameters_;
};

// One step while it is written.
class Conversion {
 public:
  Conversion(const TracedModel& model, std::size_t at, ValueNames& names, GraphBuilder& builder)
      : to(builder), model_(model), step_(model.steps[at]), at_(at), names_(names) {}

  GraphBuilder& to;

  const std::string& op() const { return step_.op; }
  std::size_t inputs() const { return step_.inputs.size(); }
  bool has(std::size_t input) const { return step_.inputs.at(input).origin != Operand::Origin::kUndefined; }
  std::string in(std::size_t input) { return names_.name(step_.text(), step_.inputs.at(input)); }
  std::string saved(std::size_t which) { return names_.name(step_.text(), step_.saved.at(which)); }
  std::string saved_as_bool(std::size_t which) { return to.as_bool(saved(which)); }
  const Shape& shape(std::size_t input) const { return step_.inputs.at(input).first.shape(); }
  Extents extents(std::size_t input) const { return of(step_.inputs.at(input)); }
  Extents saved_extents(std::size_t which) const { return of(step_.saved.at(which)); }
  const Shape& result_shape() const { return step_.first_result.shape(); }
  Extents result_extents() const {
    return extents_of(step_.text(), step_.first_result.shape(), step_.second_result.shape(), model_.sizes);
  }
  // The extent as a number. Throws InvalidArgument if it depends on the number of samples.
  std::int64_t fixed(const Extent& extent) const;
  void result(const std::string& name, std::size_t output = 0) { names_.set(at_, output, name); }

  // Attributes, which must be the same in both passes.
  std::int64_t integer(const std::string& name) const;
  float number(const std::string& name) const;
  std::vector<std::int64_t> integers(const std::string& name) const;
  // An attribute that may depend on the batch's size.
  Extents sizes(const std::string& name) const;
  bool has_lengths(const std::string& name) const;
  // Extents (N) as values: see ValueNames::lengths().
  std::string lengths(const std::string& name) const;

  // Whether an input is a constant of zeros in both passes, whatever its extents.
  bool is_zeros(std::size_t input) const;

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  Extents of(const Operand& each) const {
    return extents_of(step_.text(), each.first.shape(), each.second.shape(), model_.sizes);
  }

  const TracedModel& model_;
  const TracedStep& step_;
  std::size_t at_;
  ValueNames& names_;
};

// By the operator's name, in convert_*.cpp.
void convert_unary(Conversion& c);
void convert_binary(Conversion& c);
void convert_scaling(Conversion& c);
void convert_selection(Conversion& c);
void convert_copy(Conversion& c);
void convert_shape(Conversion& c);
void convert_indexing(Conversion& c);
void convert_reduction(Conversion& c);
void convert_statistics(Conversion& c);
void convert_order(Conversion& c);
void convert_product(Conversion& c);
void convert_softmax(Conversion& c);
void convert_norm(Conversion& c);
void convert_batch_norm(Conversion& c);
void convert_image_layer(Conversion& c);
void convert_transposed_convolution(Conversion& c);
void convert_resampling(Conversion& c);
void convert_recurrent(Conversion& c);
void convert_attention(Conversion& c);
void convert_length_mask(Conversion& c);

// gelu and the other unary functions on the value x; used by feed_forward, too.
std::string unary_function(GraphBuilder& to, UnaryFunction function, float parameter, float second,
                           const std::string& x);

}  // namespace lockstep::onnx
