// Recognises numbers in file names and in lists that users write.
#pragma once

#include <string_view>

namespace lockstep {

// True for one or more digits and nothing else: no sign, no space. The length is not limited: check it before
// converting.
inline bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

}  // namespace lockstep
