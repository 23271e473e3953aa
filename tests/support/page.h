// Parses pages of documentation, for the tests that compare them with the code.
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

// README.md and every page below docs/, relative to `root`, in order.
std::vector<std::string> pages_below(const std::string& root);

// The contents of the file; empty if it cannot be read.
std::string text_of_file(const std::string& path);

struct Block {
  std::string language;  // the word after the opening fence: "cpp"
  std::string text;      // the text between the fences
};
std::vector<Block> blocks_of(const std::string& page);

// The page without its code blocks.
std::string prose_of(const std::string& page);

// Targets of links and images outside of code blocks: "launching.md#tokens".
std::vector<std::string> links_of(const std::string& page);

// The anchors of the headings, as GitHub makes them: "gpus-cores-and-memory".
std::vector<std::string> anchors_of(const std::string& page);

}  // namespace lockstep::testing
