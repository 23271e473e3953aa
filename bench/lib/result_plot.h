// Draws time by size for one or several results.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::bench {

// A document written by --json-file, and the name of its curve.
struct NamedResult {
  std::string name;
  nlohmann::ordered_json document;
};

// Results are named after the files. Throws FileError, or InvalidArgument if a file is not a result of these programs.
std::vector<NamedResult> read_results(const std::vector<std::string>& files);

// Throws InvalidArgument for a result without rows, and FileError if the picture cannot be written.
void plot_results(const std::vector<NamedResult>& results, const std::string& file);

}  // namespace lockstep::bench
