// Regular expressions (ECMAScript's) for tests. They are compiled in one file, since <regex> adds seconds to the
// compilation of every file that includes it.
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

// The first match of `pattern`: the complete match, then its groups ("" for one that took no part). Empty if there is
// none.
std::vector<std::string> find_match(const std::string& text, const std::string& pattern);

// All matches, in order.
std::vector<std::vector<std::string>> find_matches(const std::string& text, const std::string& pattern);
std::vector<std::vector<std::string>> find_matches_by_line(const std::string& text,
                                                           const std::string& pattern);  // ^ and $ match at line ends

// Whether the pattern matches the complete text.
bool matches(const std::string& text, const std::string& pattern);

// $1 in `replacement` is the first group.
std::string replace_matches(const std::string& text, const std::string& pattern, const std::string& replacement);

}  // namespace lockstep::testing
