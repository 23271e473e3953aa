// docs/troubleshooting.md as data: its tests take their limits, exit codes and messages from there, so that the page cannot say
// otherwise.
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

struct FaultRow {
  std::string fault, test, others;
  double seen_s = 0, limit_s = 0;
  std::vector<int> exit_codes;        // any of them
  std::vector<std::string> messages;  // all of them; "<word>" in one stands for anything within a line
};

// The rows of the page's tables that have a column "Test". Throws std::runtime_error that names the line which is none.
std::vector<FaultRow> read_fault_table(const std::string& path);

// Does some line of the text hold the pattern?
bool has_message(const std::string& text, const std::string& pattern);

}  // namespace lockstep::testing
