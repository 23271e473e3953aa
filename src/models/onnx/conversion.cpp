#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "src/models/onnx/converters.h"

namespace lockstep::onnx {

namespace {

std::pair<const void*, std::string> key_of_constant(const Tensor& tensor) {
  return {tensor.buffer().data(), fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().text())};
}

bool has_same_bytes(const Tensor& a, const Tensor& b) {
  if (a.is_same(b) || a.buffer().data() == b.buffer().data()) return true;
  const Tensor x = a.to(cpu_device()), y = b.to(cpu_device());
  return x.bytes() == y.bytes() &&
         (x.bytes() == 0 || std::memcmp(x.buffer().data(), y.buffer().data(), x.bytes()) == 0);
}

constexpr const char* kUnrecorded =
    "the two runs read different values that no operator has recorded: from span() or data(), clone(), copy_from(), "
    "item(), random numbers, or numbers that the module computed from the batch's size";

bool has_values(const Tensor& tensor, const std::vector<std::int64_t>& values) {
  if (tensor.dtype() != DType::kInt64 || tensor.shape() != Shape{static_cast<std::int64_t>(values.size())})
    return false;
  const Tensor host = tensor.to(cpu_device());
  return std::equal(values.begin(), values.end(), host.span<std::int64_t>().begin());
}

// The first index along each dimension that grows with the batch, where all other indices must have the same elements;
// undefined if they do not. `x` is on the CPU.
Tensor without_repeats(const Tensor& x, const Extents& extents) {
  const std::size_t element = size_of(x.dtype());
  std::vector<std::int64_t> kept(x.shape().extents().begin(), x.shape().extents().end());
  for (std::size_t d = 0; d < kept.size(); ++d)
    if (!extents[d].is_static()) kept[d] = 1;
  const Tensor first = Tensor::empty(Shape(std::span<const std::int64_t>(kept)), x.dtype(), cpu_device());
  const auto* from = reinterpret_cast<const std::byte*>(x.buffer().data());
  auto* to = reinterpret_cast<std::byte*>(first.buffer().data());
  for (std::int64_t at = 0; at < x.count(); ++at) {
    std::int64_t rest = at, place = 0, step = 1;
    bool is_first = true;
    for (std::size_t d = kept.size(); d-- > 0;) {
      const std::int64_t extent = x.shape()[static_cast<std::int64_t>(d)], index = rest % extent;
      rest /= extent;
      is_first = is_first && (extents[d].is_static() || index == 0);
      if (extents[d].is_static()) place += index * step;
      step *= kept[d];
    }
    std::byte* const target = to + static_cast<std::size_t>(place) * element;
    const std::byte* const source = from + static_cast<std::size_t>(at) * element;
    if (is_first)
      std::memcpy(target, source, element);
    else if (std::memcmp(target, source, element) != 0)
      return {};
  }
  return first;
}

}  // namespace

ValueNames::ValueNames(const nn::Module& module, const TracedModel& model, GraphBuilder& builder,
                       std::vector<std::string> input_names)
    : model_(model), builder_(builder), input_names_(std::move(input_names)) {
  for (const NamedTensor& each : module.state_dict()) parameters_.emplace(key_of_constant(each.tensor), each.name);
}

std::string ValueNames::name(const std::string& reader, const Operand& operand) {
  switch (operand.origin) {
    case Operand::Origin::kUndefined: return "";
    case Operand::Origin::kInput: return input_names_[operand.index];
    case Operand::Origin::kResult: return results_.at({operand.index, operand.output});
    case Operand::Origin::kConstant: break;
  }
  return constant(reader, operand);
}

std::string ValueNames::constant(const std::string& reader, const Operand& operand) {
  // By both: two constants of the first pass may be one in the second.
  std::string& known = constants_[{key_of_constant(operand.first), key_of_constant(operand.second)}];
  if (!known.empty()) return known;
  const auto parameter = parameters_.find(key_of_constant(operand.first));
  element_type_of(fmt::format("{} of {}", describe(operand.first), reader), operand.first.dtype());
  const Extents extents =
      extents_of("a constant of " + reader, operand.first.shape(), operand.second.shape(), model_.sizes);
  const std::string name = builder_.unique_name(parameter != parameters_.end() ? parameter->second : "constant");
  if (operand.first.shape() == operand.second.shape()) {
    if (!has_same_bytes(operand.first, operand.second))
      throw InvalidArgument("export_onnx: {} reads {} {}: {}", reader, name_of(operand.first.dtype()),
                            operand.first.shape().text(), kUnrecorded);
    builder_.add_initializer(name, operand.first);
    return known = name;
  }
  const Tensor once = without_repeats(operand.first.to(cpu_device()), extents),
               again = without_repeats(operand.second.to(cpu_device()), extents);
  if (!once.defined() || !again.defined() ||
      std::memcmp(once.buffer().data(), again.buffer().data(), once.bytes()) != 0)
    throw InvalidArgument(
        "export_onnx: {} reads {} {}, which depends on the batch size in a way that no operator has recorded: make it "
        "of "
        "the inputs with operators, or with one sample, which is repeated",
        reader, name_of(operand.first.dtype()), operand.first.shape().text());
  builder_.add_initializer(name, once);
  const Extents single = extents_of(name, once.shape(), again.shape(), model_.sizes);
  return known = builder_.expand(name, single, extents);
}

std::string ValueNames::lengths(const std::string& reader, const std::vector<std::int64_t>& first,
                                const std::vector<std::int64_t>& second) const {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < input_names_.size(); ++i)
    if (has_values(model_.first_inputs[i], first) && has_values(model_.second_inputs[i], second))
      found.push_back(input_names_[i]);
  if (found.size() == 1) return found[0];
  if (found.size() > 1)
    throw InvalidArgument(
        "export_onnx: {} has lengths that two inputs of the module have, '{}' and '{}': give the examples different "
        "values, so that it is clear which one it reads",
        reader, found[0], found[1]);
  throw InvalidArgument(
      "export_onnx: {} has lengths of samples that no input of the module has: give the module an int64 input (N) with "
      "the lengths, which it reads with span()",
      reader);
}

namespace {

template <typename T> const T& attribute_as(const TracedStep& step, const Attributes& all, const std::string& name) {
  const auto found = all.find(name);
  LOCKSTEP_CHECK(found != all.end() && std::holds_alternative<T>(found->second), "{} has no attribute '{}'", step.op,
                 name);
  return std::get<T>(found->second);
}

[[noreturn]] void refuse_other(const TracedStep& step, const std::string& name) {
  throw InvalidArgument(
      "export_onnx: {} has another '{}' in a batch of another size or with other values: it depends on the batch",
      step.text(), name);
}

template <typename T> const T& equal_attribute(const TracedStep& step, const std::string& name) {
  const T& first = attribute_as<T>(step, step.first, name);
  if (first != attribute_as<T>(step, step.second, name)) refuse_other(step, name);
  return first;
}

}  // namespace

std::int64_t Conversion::integer(const std::string& name) const { return equal_attribute<std::int64_t>(step_, name); }
float Conversion::number(const std::string& name) const {
  return static_cast<float>(equal_attribute<double>(step_, name));
}
std::vector<std::int64_t> Conversion::integers(const std::string& name) const {
  return equal_attribute<std::vector<std::int64_t>>(step_, name);
}

Extents Conversion::sizes(const std::string& name) const {
  const auto& first = attribute_as<std::vector<std::int64_t>>(step_, step_.first, name);
  const auto& second = attribute_as<std::vector<std::int64_t>>(step_, step_.second, name);
  return extents_of(step_.text(), Shape(std::span<const std::int64_t>(first)),
                    Shape(std::span<const std::int64_t>(second)), model_.sizes);
}

bool Conversion::has_lengths(const std::string& name) const {
  const bool first = !attribute_as<std::vector<std::int64_t>>(step_, step_.first, name).empty();
  if (first == attribute_as<std::vector<std::int64_t>>(step_, step_.second, name).empty()) refuse_other(step_, name);
  return first;
}

std::string Conversion::lengths(const std::string& name) const {
  return names_.lengths(step_.text(), attribute_as<std::vector<std::int64_t>>(step_, step_.first, name),
                        attribute_as<std::vector<std::int64_t>>(step_, step_.second, name));
}

std::int64_t Conversion::fixed(const Extent& extent) const {
  if (!extent.is_static())
    refuse("one of its extents behind the first depends on the number of samples: samples are the first dimension");
  return extent.fixed;
}

bool Conversion::is_zeros(std::size_t input) const {
  const Operand& operand = step_.inputs.at(input);
  if (operand.origin != Operand::Origin::kConstant) return false;
  for (const Tensor& tensor : {operand.first, operand.second}) {
    const Tensor host = tensor.to(cpu_device());
    if (host.dtype() != DType::kFloat32) return false;
    for (const float value : host.span<float>())
      if (value != 0) return false;
  }
  return true;
}

void Conversion::refuse(const std::string& why) const {
  throw InvalidArgument("export_onnx: {} cannot be written: {}", step_.text(), why);
}

}  // namespace lockstep::onnx
