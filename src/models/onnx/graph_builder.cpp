#include "src/models/onnx/graph_builder.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::onnx {

namespace {

template <typename T> std::string bytes_of_values(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

bool is_static(const Extents& extents) {
  return std::all_of(extents.begin(), extents.end(), [](const Extent& each) { return each.is_static(); });
}

GraphBuilder::Ints fixed_of(const Extents& extents) {
  GraphBuilder::Ints fixed;
  for (const Extent& each : extents) fixed.push_back(each.fixed);
  return fixed;
}

}  // namespace

ElementType element_type_of(const std::string& what, DType type) {
  switch (type) {
    case DType::kFloat32: return ElementType::kFloat;
    case DType::kInt64: return ElementType::kInt64;
    case DType::kInt32: return ElementType::kInt32;
    case DType::kUInt8: return ElementType::kUInt8;
    case DType::kInt8: return ElementType::kInt8;
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16: break;
  }
  throw InvalidArgument(
      "export_onnx: {} is {}: expected float32, int64, int32, int8 or uint8; load the weights into a float32 module, "
      "and "
      "let it compute in float32",
      what, name_of(type));
}

void GraphBuilder::begin_step(const std::string& path, const std::string& op) {
  std::string stem = path.empty() ? op : path + "/" + op;
  std::replace(stem.begin(), stem.end(), '.', '/');
  step_ = unique_name(stem);
}

std::string GraphBuilder::unique_name(const std::string& stem) {
  const int count = counts_[stem]++;
  return count == 0 ? stem : unique_name(fmt::format("{}_{}", stem, count));
}

std::string GraphBuilder::add(const std::string& op, std::vector<std::string> inputs, AttributeList attributes) {
  const std::string name = unique_name(step_ + "/" + op);
  graph.nodes.push_back({op, name, std::move(inputs), {name}, std::move(attributes)});
  return name;
}

std::vector<std::string> GraphBuilder::add_with_outputs(const std::string& op, std::vector<std::string> inputs,
                                                        AttributeList attributes, std::size_t count) {
  std::vector<std::string> outputs = {unique_name(step_ + "/" + op)};
  while (outputs.size() < count) outputs.push_back(unique_name(outputs.front() + ":" + std::to_string(outputs.size())));
  graph.nodes.push_back({op, outputs.front(), std::move(inputs), outputs, std::move(attributes)});
  return outputs;
}

void GraphBuilder::add_initializer(const std::string& name, const Tensor& values) {
  const auto memory = std::make_shared<const Tensor>(values.to(cpu_device()));
  Initializer added{name, element_type_of("'" + name + "'", values.dtype()), {}, {}, memory};
  added.dims.assign(values.shape().extents().begin(), values.shape().extents().end());
  added.bytes = {reinterpret_cast<const std::byte*>(memory->buffer().data()), memory->bytes()};
  graph.initializers.push_back(std::move(added));
}

std::string GraphBuilder::shared(ElementType type, const Ints& dims, const std::string& bytes) {
  const std::string key = bytes_of_values(dims) + '/' + bytes;
  const auto [at, is_new] = constants_.emplace(std::pair(static_cast<int>(type), key), "");
  if (!is_new) return at->second;
  at->second = unique_name("constant_" + std::to_string(constants_.size()));
  const auto memory = std::make_shared<const std::string>(bytes);
  graph.initializers.push_back({at->second, type, dims, std::as_bytes(std::span(*memory)), memory});
  return at->second;
}

std::string GraphBuilder::ints(const Ints& values) {
  return shared(ElementType::kInt64, {static_cast<std::int64_t>(values.size())}, bytes_of_values(values));
}
std::string GraphBuilder::integer(std::int64_t value) {
  return shared(ElementType::kInt64, {}, bytes_of_values(Ints{value}));
}
std::string GraphBuilder::number(float value) {
  return shared(ElementType::kFloat, {}, bytes_of_values(std::vector<float>{value}));
}
std::string GraphBuilder::floats(const std::vector<float>& values) {
  return shared(ElementType::kFloat, {static_cast<std::int64_t>(values.size())}, bytes_of_values(values));
}
std::string GraphBuilder::mask(const std::vector<std::uint8_t>& values, const Ints& dims) {
  return shared(ElementType::kBool, dims, bytes_of_values(values));
}

std::string GraphBuilder::transpose(const std::string& x, const Ints& order) {
  return add("Transpose", {x}, {{"perm", order}});
}

// One extent that is not fixed is written as -1, or as 0 if it is the one of x at its place.
std::string GraphBuilder::reshape(const std::string& x, const Extents& from, const Extents& to) {
  Ints wanted = fixed_of(to);
  const bool has_empty = std::count(wanted.begin(), wanted.end(), 0) > 0 && is_static(to);
  std::size_t open = 0;
  for (std::size_t d = 0; d < to.size(); ++d) {
    if (to[d].is_static()) continue;
    const bool is_same = d < from.size() && from[d] == to[d];
    wanted[d] = is_same ? 0 : -1;
    open += is_same ? 0 : 1;
  }
  const bool has_zero =
      std::any_of(to.begin(), to.end(), [](const Extent& e) { return e.is_static() && e.fixed == 0; });
  if (has_empty || (has_zero && !is_static(to)) || open > 1)
    return add("Reshape", {x, as_shape(to)}, {{"allowzero", std::int64_t{1}}});
  return add("Reshape", {x, ints(wanted)});
}

std::string GraphBuilder::reduce(const std::string& op, const std::string& x, const Ints& dims, bool keeps_dims) {
  AttributeList attributes = {{"keepdims", std::int64_t{keeps_dims}}};
  if (dims.empty()) return add(op, {x}, attributes);  // of a scalar
  if (op == "ReduceSum" || opset() >= 18) return add(op, {x, ints(dims)}, attributes);
  attributes.emplace_back("axes", dims);
  return add(op, {x}, attributes);
}

std::string GraphBuilder::extent(const Extent& extent) {
  if (extent.is_static()) return ints({extent.fixed});
  std::string& made = extents_[fmt::format("{} {}", extent.per_sample, extent.fixed)];
  if (!made.empty()) return made;
  if (samples_.empty()) samples_ = add("Shape", {first_input_}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
  std::string value = samples_;
  if (extent.per_sample != 1) value = add("Mul", {value, ints({extent.per_sample})});
  if (extent.fixed != 0) value = add("Add", {value, ints({extent.fixed})});
  return extents_[fmt::format("{} {}", extent.per_sample, extent.fixed)] = value;
}

std::string GraphBuilder::as_shape(const Extents& extents) {
  if (is_static(extents)) return ints(fixed_of(extents));
  std::vector<std::string> parts;
  Ints fixed;
  const auto end_fixed = [&] {
    if (!fixed.empty()) parts.push_back(ints(fixed));
    fixed.clear();
  };
  for (const Extent& each : extents) {
    if (each.is_static()) {
      fixed.push_back(each.fixed);
      continue;
    }
    end_fixed();
    parts.push_back(extent(each));
  }
  end_fixed();
  return parts.size() == 1 ? parts[0] : add("Concat", parts, {{"axis", std::int64_t{0}}});
}

std::string GraphBuilder::count_of(const Extents& extents) {
  if (is_static(extents)) {
    std::int64_t count = 1;
    for (const Extent& each : extents) count *= each.fixed;
    return number(static_cast<float>(count));
  }
  return cast(reduce("ReduceProd", as_shape(extents), {0}, false), ElementType::kFloat);
}

std::string GraphBuilder::expand(const std::string& x, const Extents& from, const Extents& to) {
  Extents wanted = to;
  const std::size_t missing = to.size() - from.size();
  for (std::size_t d = missing; d < to.size(); ++d)
    if (from[d - missing] == to[d] && !to[d].is_static()) wanted[d] = {0, 1};  // 1 leaves an extent as it is
  return add("Expand", {x, as_shape(wanted)});
}

std::string GraphBuilder::cast(const std::string& x, ElementType type) {
  return add("Cast", {x}, {{"to", static_cast<std::int64_t>(type)}});
}

std::string GraphBuilder::as_mask(const std::string& bools) {
  const std::string mask = cast(bools, ElementType::kUInt8);
  bool_of_[mask] = bools;
  return mask;
}

std::string GraphBuilder::as_bool(const std::string& mask) {
  const auto known = bool_of_.find(mask);
  return known != bool_of_.end() ? known->second : bool_of_[mask] = cast(mask, ElementType::kBool);
}

std::string GraphBuilder::length_mask(const std::string& lengths, std::int64_t extent) {
  Ints positions(static_cast<std::size_t>(extent));
  for (std::int64_t at = 0; at < extent; ++at) positions[static_cast<std::size_t>(at)] = at;
  return add("Less", {ints(positions), add("Unsqueeze", {lengths, ints({1})})});
}

std::string GraphBuilder::step_mask(const std::string& lengths, std::int64_t steps) {
  return add("Unsqueeze", {transpose(length_mask(lengths, steps), {1, 0}), ints({2})});
}

}  // namespace lockstep::onnx
