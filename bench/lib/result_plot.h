// Time by size of one or several results as one picture.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::bench {

// A document as --json-file writes it, and what its curve is called.
struct NamedResult {
  std::string name;
  nlohmann::ordered_json document;
};

// Named after the files. Throws FileError, or InvalidArgument for what is no result of these programs.
std::vector<NamedResult> read_results(const std::vector<std::string>& files);

// Throws InvalidArgument for a result without rows, FileError when the picture cannot be written.
void plot_results(const std::vector<NamedResult>& results, const std::string& file);

}  // namespace lockstep::bench
