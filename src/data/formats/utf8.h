#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

// The character (code point) that begins at byte `at`, which moves behind it; nothing, and `at` stays, where there is
// no well-formed one (The Unicode Standard, table 3-7: none too long, no surrogate, none above 10FFFF).
std::optional<char32_t> next_character(std::string_view text, std::size_t& at);

void append_character(std::string& text, char32_t character);

// Without the byte order mark that some editors put in front of UTF-8.
inline std::string_view without_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

// Throws FileError with path, byte and line for text that is no UTF-8.
void check_utf8(std::string_view text, const std::string& path);

}  // namespace lockstep::data
