// The parts that several models share: reading config.json, and attention over separate queries, keys and values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/autograd/attention.h"
#include "lockstep/autograd/shapes.h"
#include "lockstep/core/error.h"

namespace lockstep::models {

// config.json of a model. Every member throws FileError with file, key, expected and found value.
class ConfigFile {
 public:
  // `path` is the file or its folder; `model_types` are the accepted values of its model_type.
  ConfigFile(const std::string& path, const std::vector<std::string>& model_types);

  // A positive whole number below 2^30. Without a default the key must exist.
  std::int64_t size(const char* key) const;
  std::int64_t size(const char* key, std::int64_t otherwise) const;
  std::int64_t layers(const char* key) const;            // a number of layers, at most 100,000
  float number(const char* key, float otherwise) const;  // finite as a float
  float positive(const char* key, float otherwise) const;
  float probability(const char* key, float otherwise) const;  // in [0, 1)
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  // Throws unless the key is missing, null, or has this value.
  void require(const char* key, const nlohmann::json& only_value) const;
  // Null if it is missing.
  const nlohmann::json* object(const char* key) const;
  [[noreturn]] void refuse(const std::string& key, const nlohmann::json& found, const std::string& expected) const;

  const std::string& path() const { return path_; }

 private:
  std::int64_t whole_number(const char* key, std::int64_t most) const;
  const nlohmann::json* find(const char* key) const;  // null: missing or null

  std::string path_;
  nlohmann::json values_;
};

// The whole text of a JSON file, at most 64 MiB and 64 levels deep; FileError with the path.
std::string json_text_of(const std::string& path);

// (N, T, heads * width) to (N, T, heads, width).
inline Tensor split_heads(const Tensor& x, std::int64_t heads) {
  const Shape& shape = x.shape();
  return reshape(x, {shape[0], shape[1], heads, shape[2] / heads});
}
// (N, T, heads, width) to (N, T, heads * width).
inline Tensor join_heads(const Tensor& x) {
  const Shape& shape = x.shape();
  return reshape(x, {shape[0], shape[1], shape[2] * shape[3]});
}

// Throws InvalidArgument unless ids are (N, T) with at most `positions` positions after the first `before`.
void check_ids(const char* model, const Tensor& ids, std::int64_t positions, std::int64_t before = 0);
// Throws InvalidArgument unless `heads` divides `width`.
void check_heads(const char* model, std::int64_t width, std::int64_t heads);

}  // namespace lockstep::models
