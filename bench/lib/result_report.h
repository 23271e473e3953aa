// Prints results as a table, as JSON lines, or as one JSON document.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/lib/fit.h"
#include "bench/lib/settings.h"

namespace lockstep::bench {

class ResultReport {
 public:
  // `place`: the place in the table's header, such as "2 ranks, host over shm".
  ResultReport(const Settings& settings, int ranks, const std::string& place);

  void add(const Row& row);  // also prints it
  void finish();             // prints the fit, and whether all results were right

  bool failed() const { return wrong_ != 0; }
  std::int64_t wrong() const { return wrong_; }
  const nlohmann::ordered_json& rows() const { return rows_; }
  nlohmann::ordered_json summary() const;

 private:
  void print_head(const std::string& place) const;
  void print_line(const Row& row) const;

  const Settings& settings_;
  int ranks_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  std::vector<Point> points_;
  std::int64_t wrong_ = 0;
  std::optional<bool> same_bits_;
};

nlohmann::ordered_json settings_as_json(const Settings& settings);

// Writes the document to the file in one piece. Throws FileError.
void write_document(const std::string& file, const nlohmann::ordered_json& document);

}  // namespace lockstep::bench
