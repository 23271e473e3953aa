// JSON lines: one JSON value per line, plain or gzip (jsonlines.org).
//
// The values are nlohmann/json's: code that reads records includes <nlohmann/json.hpp>.
//
//   const JsonLines train("train.jsonl.gz", [](const nlohmann::json& record) {
//     return Sample{int64_tensor(record.at("tokens")), int64_tensor(record.at("label"))};
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

using JsonToSample = std::function<Sample(const nlohmann::json& record)>;

// Sample i is line i. The constructor reads all lines and keeps their samples; copies share them.
class JsonLines : public Dataset {
 public:
  // Throws FileError with file and line for invalid JSON or UTF-8, an empty line, or an exception of `to_sample`
  // (nested in it), and where read_file() does.
  JsonLines(const std::string& path, const JsonToSample& to_sample, std::uint64_t max_bytes = kMaxFileBytes);
  std::int64_t size() const override { return static_cast<std::int64_t>(samples_->size()); }
  Sample get(std::int64_t index, std::int64_t epoch) const override;

 private:
  std::shared_ptr<const std::vector<Sample>> samples_;
};

// Convert a number to a CPU tensor (), and an array of N numbers to (N). Both throw InvalidArgument for other JSON;
// int64_tensor() also for numbers that are not integers or do not fit.
Tensor int64_tensor(const nlohmann::json& value);
Tensor float32_tensor(const nlohmann::json& value);

}  // namespace lockstep::data
#pragma GCC visibility pop
