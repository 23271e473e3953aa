// Words that are numbers: in names of files, in lists that users write.
#pragma once

#include <string_view>

namespace lockstep {

// One digit or more, and nothing else: no sign, no space. As long as it likes: check its length before it is converted.
inline bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

}  // namespace lockstep
