#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

// Returns the character (code point) that begins at byte `at`, and moves `at` after it. Returns nullopt and leaves `at`
// when no well-formed character begins there (The Unicode Standard, table 3-7: overlong forms, surrogates and values
// above 10FFFF are not well-formed).
std::optional<char32_t> next_character(std::string_view text, std::size_t& at);

void append_character(std::string& text, char32_t character);

// Removes the byte order mark that some editors put at the start of UTF-8 text.
inline std::string_view without_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

// Throws FileError with path, byte and line for text that is not UTF-8.
void check_utf8(std::string_view text, const std::string& path);

}  // namespace lockstep::data
