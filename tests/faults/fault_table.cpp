#include "tests/faults/fault_table.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace lockstep::testing {

namespace {

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream parts(line.substr(1));
  for (std::string cell; std::getline(parts, cell, '|');) cells.push_back(trimmed(cell));
  return cells;
}

// Returns the texts between `these`.
std::vector<std::string> quoted(const std::string& cell) {
  std::vector<std::string> quotes;
  for (std::size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at)) {
    const std::size_t end = cell.find('`', at + 1);
    if (end == std::string::npos) throw std::runtime_error("a quote is open");
    quotes.push_back(cell.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return quotes;
}

std::vector<int> numbers(const std::string& cell) {
  std::vector<int> all;
  std::istringstream words(cell);
  for (std::string word; words >> word;)
    if (word != "or") all.push_back(std::stoi(word));
  return all;
}

FaultRow row_of(const std::vector<std::string>& cells) {
  if (cells.size() != 7) throw std::runtime_error(std::to_string(cells.size()) + " cells");
  const std::vector<std::string> test = quoted(cells[1]);
  if (test.size() != 1) throw std::runtime_error("no test");
  return {cells[0], test[0], cells[2], std::stod(cells[3]), std::stod(cells[4]), numbers(cells[5]), quoted(cells[6])};
}

bool line_has(const std::string& line, const std::string& pattern) {
  std::size_t from = 0;
  for (std::size_t at = 0; at <= pattern.size();) {
    const std::size_t open = std::min(pattern.find('<', at), pattern.size());
    const std::size_t found = line.find(pattern.substr(at, open - at), from);
    if (found == std::string::npos) return false;
    from = found + (open - at);
    const std::size_t close = pattern.find('>', open);
    if (open == pattern.size() || close == std::string::npos) return true;
    at = close + 1;
  }
  return true;
}

}  // namespace

std::vector<FaultRow> read_fault_table(const std::string& path) {
  std::vector<FaultRow> rows;
  std::ifstream page(path);
  if (!page) throw std::runtime_error("cannot read " + path);
  bool inside = false;  // a table whose head has a column "Test"
  for (std::string line; std::getline(page, line);) {
    if (line.find("| Test |") != std::string::npos) inside = true;
    if (line.rfind("|", 0) != 0) inside = false;
    if (!inside || line.rfind("| ", 0) != 0 || line.find("| Test |") != std::string::npos) continue;
    try {
      rows.push_back(row_of(cells_of(line)));
    } catch (const std::exception& error) {
      throw std::runtime_error(path + ": " + error.what() + ": " + line);
    }
  }
  return rows;
}

bool has_message(const std::string& text, const std::string& pattern) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line_has(line, pattern)) return true;
  return false;
}

}  // namespace lockstep::testing
