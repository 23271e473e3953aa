#include "tests/support/page.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace lockstep::testing {

namespace {

const std::string kFence = "```";

struct Parts {
  std::vector<Block> blocks;
  std::string prose;
};

Parts parts_of(const std::string& page) {
  Parts parts;
  std::istringstream lines(page);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(kFence, 0) == 0) {
      inside = !inside;
      if (inside) parts.blocks.push_back({line.substr(kFence.size()), ""});
    } else {
      (inside ? parts.blocks.back().text : parts.prose) += line + "\n";
    }
  }
  return parts;
}

std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_') anchor += static_cast<char>(std::tolower(byte));
    if (c == ' ') anchor += '-';
  }
  return anchor;
}

}  // namespace

std::vector<std::string> pages_below(const std::string& root) {
  std::vector<std::string> pages = {"README.md"};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root + "/docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path().lexically_relative(root).generic_string());
  std::sort(pages.begin(), pages.end());
  return pages;
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Block> blocks_of(const std::string& page) { return parts_of(page).blocks; }

std::string prose_of(const std::string& page) { return parts_of(page).prose; }

std::vector<std::string> links_of(const std::string& page) {
  const std::string prose = prose_of(page);
  std::vector<std::string> links;
  for (std::size_t at = prose.find("]("); at != std::string::npos; at = prose.find("](", at + 2))
    links.push_back(prose.substr(at + 2, prose.find(')', at) - at - 2));
  return links;
}

std::vector<std::string> anchors_of(const std::string& page) {
  std::vector<std::string> anchors;
  std::istringstream lines(prose_of(page));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t level = line.find_first_not_of('#');
    if (level != 0 && level != std::string::npos && line[level] == ' ')
      anchors.push_back(anchor_of(line.substr(level + 1)));
  }
  return anchors;
}

}  // namespace lockstep::testing
