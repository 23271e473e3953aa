#include "lockstep/data/json_lines.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/core/error.h"
#include "src/core/process/file_kind.h"
#include "src/data/formats/utf8.h"
#include "src/data/loading/stack.h"

namespace lockstep::data {

namespace {

// Returns the word that Python's json.dumps() writes for a number that JSON does not have; "" for any other text.
std::string_view foreign_number(std::string_view line, std::size_t byte) {
  for (const std::string_view word : {"-Infinity", "Infinity", "NaN"})
    for (std::size_t begin = byte < 3 ? 0 : byte - 3; begin < std::min(byte + 1, line.size()); ++begin)
      if (line.substr(begin).starts_with(word)) return word;
  return "";
}

nlohmann::json parse_line(std::string_view line, const std::string& path, std::size_t number) {
  try {
    return nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    if (const std::string_view word = foreign_number(line, error.byte); !word.empty())
      throw FileError(
          "{}: line {}, byte {}: {} is not JSON: write null, or leave the key out (Python: json.dumps(..., "
          "allow_nan=False))",
          path, number, error.byte, word);
    const std::string why = number == 1 ? mistaken_download(std::as_bytes(std::span(line))) : "";
    throw FileError("{}: line {}, byte {}: is not a JSON value in UTF-8: every line must be one.{}", path, number,
                    error.byte, why);
  } catch (const nlohmann::json::exception& error) {
    throw FileError("{}: line {}: {}", path, number, error.what());
  }
}

Sample sample_of(const nlohmann::json& record, const JsonToSample& to_sample, const std::string& path,
                 std::size_t number) {
  try {
    Sample sample = to_sample(record);
    if (sample.empty()) throw InvalidArgument("the function returned a sample without tensors");
    for (const Tensor& tensor : sample) spec_of(tensor);
    return sample;
  } catch (const std::exception& error) {
    std::throw_with_nested(FileError("{}: line {}: {}", path, number, error.what()));
  }
}

std::int64_t integer_of(const nlohmann::json& value) {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_integer())
    throw InvalidArgument("int64_tensor: expected an integer, got a JSON {}",
                          value.is_number_float() ? "fraction" : value.type_name());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kLargest)
    throw InvalidArgument("int64_tensor: {} does not fit into int64", value.get<std::uint64_t>());
  return value.get<std::int64_t>();
}

float number_of(const nlohmann::json& value) {
  if (!value.is_number()) throw InvalidArgument("float32_tensor: expected a number, got a JSON {}", value.type_name());
  const double number = value.get<double>();
  if (std::abs(number) > std::numeric_limits<float>::max())
    throw InvalidArgument("float32_tensor: {} does not fit into float32", number);
  return static_cast<float>(number);
}

template <typename T> Tensor tensor_of(const nlohmann::json& value, T (*element)(const nlohmann::json&)) {
  if (!value.is_array()) return scalar(element(value));
  std::vector<T> values;
  for (const nlohmann::json& each : value) values.push_back(element(each));
  return Tensor::from(std::span<const T>(values), {static_cast<std::int64_t>(values.size())}, cpu_device());
}

}  // namespace

JsonLines::JsonLines(const std::string& path, const JsonToSample& to_sample, std::uint64_t max_bytes) {
  if (!to_sample) throw InvalidArgument("JsonLines: {}: the function that makes samples is empty", path);
  const std::vector<std::uint8_t> bytes = read_file(path, max_bytes);
  std::string_view text = without_mark({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);  // drop empty lines at the end
  std::vector<Sample> samples;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::size_t number = samples.size() + 1;
    samples.push_back(sample_of(parse_line(text.substr(0, end), path, number), to_sample, path, number));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (samples.empty()) throw FileError("{}: has no lines", path);
  samples_ = std::make_shared<const std::vector<Sample>>(std::move(samples));
}

Sample JsonLines::get(std::int64_t index, std::int64_t) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("JsonLines: sample {} does not exist; the set has {}", index, size());
  Sample sample;
  for (const Tensor& tensor : (*samples_)[static_cast<std::size_t>(index)]) sample.push_back(tensor.clone());
  return sample;
}

Tensor int64_tensor(const nlohmann::json& value) { return tensor_of<std::int64_t>(value, integer_of); }
Tensor float32_tensor(const nlohmann::json& value) { return tensor_of<float>(value, number_of); }

}  // namespace lockstep::data
