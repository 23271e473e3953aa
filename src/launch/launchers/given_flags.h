// Queries on a command line before it is parsed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

// The value in "--flag value", "--flag=value" or, for a flag with one letter, "-fvalue"; "" if it has no value, nullopt
// if the flag is not given.
inline std::optional<std::string> value_of(const std::vector<std::string>& flags, const std::string& flag) {
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] == flag) return i + 1 < flags.size() ? flags[i + 1] : "";
    if (flags[i].rfind(flag + "=", 0) == 0) return flags[i].substr(flag.size() + 1);
    if (flag.size() == 2 && flags[i].rfind(flag, 0) == 0) return flags[i].substr(flag.size());
  }
  return std::nullopt;
}

inline bool asks_for_information(const std::vector<std::string>& flags) {
  return std::any_of(flags.begin(), flags.end(),
                     [](const std::string& flag) { return flag == "--help" || flag == "-h" || flag == "--version"; });
}

// torchrun's number of nodes: "K", or "K:L" for elastic jobs.
struct NodeRange {
  std::string least, most;
};
inline NodeRange node_range(const std::string& text) {
  const std::size_t colon = text.find(':');
  return colon == std::string::npos ? NodeRange{text, text} : NodeRange{text.substr(0, colon), text.substr(colon + 1)};
}

}  // namespace lockstep::launch
