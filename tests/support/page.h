// Pages of documentation, taken apart for the tests that hold them to the code.
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

// README.md and every page below docs/, relative to `root`, in order.
std::vector<std::string> pages_below(const std::string& root);

// The whole file; empty when it cannot be read.
std::string text_of_file(const std::string& path);

struct Block {
  std::string language;  // what stands behind the opening fence: "cpp"
  std::string text;      // what stands between the fences
};
std::vector<Block> blocks_of(const std::string& page);

// The page without its blocks.
std::string prose_of(const std::string& page);

// Targets of links and pictures outside of blocks: "launching.md#tokens".
std::vector<std::string> links_of(const std::string& page);

// The headings' anchors, as GitHub makes them: "gpus-cores-and-memory".
std::vector<std::string> anchors_of(const std::string& page);

}  // namespace lockstep::testing
