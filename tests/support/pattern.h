// Regular expressions (ECMAScript's) for tests. Compiled once: <regex> costs every file that includes it seconds of the
// build.
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

// The first place where `pattern` matches: the whole of it, then its groups ("" for one that took no part). Empty when
// there is none.
std::vector<std::string> find_match(const std::string& text, const std::string& pattern);

// All places, from the first to the last.
std::vector<std::vector<std::string>> find_matches(const std::string& text, const std::string& pattern);
std::vector<std::vector<std::string>> find_matches_by_line(const std::string& text,
                                                           const std::string& pattern);  // ^ and $ are a line's

// The whole text, or nothing.
bool matches(const std::string& text, const std::string& pattern);

// $1 in `replacement` is the first group.
std::string replace_matches(const std::string& text, const std::string& pattern, const std::string& replacement);

}  // namespace lockstep::testing
