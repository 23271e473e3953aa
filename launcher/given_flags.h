// Questions to a command line before it is parsed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

// The value of "--flag value", "--flag=value" or, of a flag of one letter, "-fvalue"; "" for one without a value, nothing when it is not
// there.
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

}  // namespace lockstep::launcher
