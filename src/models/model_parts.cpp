#include "src/models/model_parts.h"

#include <cmath>
#include <filesystem>

#include "lockstep/autograd/extend.h"
#include "lockstep/data/files.h"
#include "src/data/formats/json_depth.h"

namespace lockstep::models {

namespace fs = std::filesystem;
using nlohmann::json;

std::string json_text_of(const std::string& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  const std::vector<std::uint8_t> bytes = data::read_file(path, kMostBytes);
  std::string text(bytes.begin(), bytes.end());
  data::check_json_depth(text, path);
  return text;
}

namespace {

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

}  // namespace

ConfigFile::ConfigFile(const std::string& path, const std::vector<std::string>& model_types)
    : path_(is_folder(path) ? path + "/config.json" : path) {
  try {
    values_ = json::parse(json_text_of(path_));
  } catch (const json::exception& error) {
    throw FileError("{}: is not JSON: {}", path_, error.what());
  }
  if (!values_.is_object()) throw FileError("{}: expected a JSON object, got {}", path_, values_.type_name());
  std::string expected;
  for (const std::string& type : model_types) {
    if (values_.value("model_type", json()) == type) return;
    expected += (expected.empty() ? "" : " or ") + type;
  }
  throw FileError("{}: is of another architecture: expected the model_type {}, found {}", path_, expected,
                  values_.value("model_type", json()).dump());
}

const json* ConfigFile::find(const char* key) const {
  const auto found = values_.find(key);
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigFile::refuse(const std::string& key, const json& found, const std::string& expected) const {
  throw FileError("{}: {}: expected {}, found {}", path_, key, expected,
                  found.is_null() ? "nothing" : found.dump().substr(0, 200));
}

std::int64_t ConfigFile::whole_number(const char* key, std::int64_t most) const {
  const json* const found = find(key);
  if (found == nullptr || !found->is_number_integer() || *found < 1 || *found > most)
    refuse(key, found == nullptr ? json() : *found, fmt::format("a positive whole number, at most {}", most));
  return found->get<std::int64_t>();
}

// A product of two sizes fits into an int64 with room for a small factor.
std::int64_t ConfigFile::size(const char* key) const { return whole_number(key, (std::int64_t{1} << 30) - 1); }

// Each layer takes memory of its own, whatever its width.
std::int64_t ConfigFile::layers(const char* key) const { return whole_number(key, 100'000); }

std::int64_t ConfigFile::size(const char* key, std::int64_t otherwise) const {
  return find(key) == nullptr ? otherwise : size(key);
}

float ConfigFile::number(const char* key, float otherwise) const {
  const json* const found = find(key);
  if (found == nullptr) return otherwise;
  if (!found->is_number() || !std::isfinite(found->get<float>())) refuse(key, *found, "a finite number");
  return found->get<float>();
}

float ConfigFile::positive(const char* key, float otherwise) const {
  const float value = number(key, otherwise);
  if (!(value > 0)) refuse(key, value, "a positive number");
  return value;
}

float ConfigFile::probability(const char* key, float otherwise) const {
  const float value = number(key, otherwise);
  if (!(value >= 0 && value < 1)) refuse(key, value, "a probability in [0, 1)");
  return value;
}

bool ConfigFile::flag(const char* key, bool otherwise) const {
  const json* const found = find(key);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) refuse(key, *found, "true or false");
  return found->get<bool>();
}

std::string ConfigFile::text(const char* key, const std::string& otherwise) const {
  const json* const found = find(key);
  if (found == nullptr) return otherwise;
  if (!found->is_string()) refuse(key, *found, "a text");
  return found->get<std::string>();
}

void ConfigFile::require(const char* key, const json& only_value) const {
  const json* const found = find(key);
  if (found != nullptr && *found != only_value) refuse(key, *found, only_value.dump() + ", the only one supported");
}

const json* ConfigFile::object(const char* key) const {
  const json* const found = find(key);
  if (found != nullptr && !found->is_object()) refuse(key, *found, "a JSON object");
  return found;
}

void check_ids(const char* model, const Tensor& ids, std::int64_t positions, std::int64_t before) {
  check_input(model, "ids (N, T)", ids, 2, nullptr, DType::kInt64);
  if (before + ids.shape()[1] > positions)
    throw InvalidArgument("{}: the model has {} positions, and ids {} need {}: shorten the sequence", model, positions,
                          ids.shape().text(), before + ids.shape()[1]);
}

void check_heads(const char* model, std::int64_t width, std::int64_t heads) {
  if (heads < 1 || width % heads != 0)
    throw InvalidArgument("{}: {} heads do not divide a width of {}", model, heads, width);
}

}  // namespace lockstep::models
