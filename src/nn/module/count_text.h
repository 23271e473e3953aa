// Formats numbers of parameters for users.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep::nn {

// "1,234,567"
inline std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

}  // namespace lockstep::nn
