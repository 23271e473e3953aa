// Bounds the nesting of a JSON text before it is parsed: copying and printing parsed values recurses.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::data {

// Throws FileError with `path` for a text that is nested more than 64 levels deep.
inline void check_json_depth(std::string_view text, const std::string& path) {
  constexpr int kMostLevels = 64;
  int depth = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostLevels)
        throw FileError("{}: its JSON is nested more than {} levels deep, at byte {}", path, kMostLevels, at);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace lockstep::data
