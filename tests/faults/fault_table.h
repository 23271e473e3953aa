// docs/troubleshooting.md as data: its tests take their limits, exit codes and messages from there, so that the page
// agrees with the behaviour.
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

struct FaultRow {
  std::string fault, test, others;
  double seen_s = 0, limit_s = 0;
  std::vector<int> exit_codes;        // any of them is accepted
  std::vector<std::string> messages;  // all of them are required; "<word>" matches any text within a line
};

// Reads the rows of the page's tables that have a column "Test". Throws std::runtime_error that names an invalid line.
std::vector<FaultRow> read_fault_table(const std::string& path);

// Whether a line of the text contains the pattern.
bool has_message(const std::string& text, const std::string& pattern);

}  // namespace lockstep::testing
