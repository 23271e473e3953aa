// JSON lines: one JSON value a line, plain or gzip (jsonlines.org).
//
// The type is nlohmann/json's: code that reads records includes <nlohmann/json.hpp>.
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

// Sample i is line i. All lines are read, and their samples kept, when the set is made; copies share them.
class JsonLines : public Dataset {
 public:
  // Throws FileError with file and line: no JSON, no UTF-8, an empty line, or what `to_sample` throws (with that
  // nested); and as read_file().
  JsonLines(const std::string& path, const JsonToSample& to_sample, std::uint64_t max_bytes = kMaxFileBytes);
  std::int64_t size() const override { return static_cast<std::int64_t>(samples_->size()); }
  Sample get(std::int64_t index, std::int64_t epoch) const override;

 private:
  std::shared_ptr<const std::vector<Sample>> samples_;
};

// A number as (), an array of numbers as (N), on the CPU. Both throw InvalidArgument for other JSON; int64_tensor() for
// numbers that are no integer or do not fit.
Tensor int64_tensor(const nlohmann::json& value);
Tensor float32_tensor(const nlohmann::json& value);

}  // namespace lockstep::data
#pragma GCC visibility pop
