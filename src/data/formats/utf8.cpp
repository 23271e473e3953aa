#include "src/data/formats/utf8.h"

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep::data {

std::optional<char32_t> next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t offset) { return static_cast<unsigned char>(text[at + offset]); };
  if (at >= text.size()) return std::nullopt;
  const unsigned first = byte(0);
  if (first < 0x80) {
    ++at;
    return first;
  }
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - at < length) return std::nullopt;
  char32_t character = first & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return std::nullopt;
    character = (character << 6) | (byte(i) & 0x3fU);
  }
  const bool too_long = (length == 3 && character < 0x800) || (length == 4 && character < 0x10000);
  const bool surrogate = character >= 0xd800 && character < 0xe000;
  if (too_long || surrogate || character > 0x10ffff) return std::nullopt;
  at += length;
  return character;
}

void append_character(std::string& text, char32_t character) {
  const auto add = [&](char32_t bits) { text.push_back(static_cast<char>(bits)); };
  if (character < 0x80) return add(character);
  if (character < 0x800) {
    add(0xc0 | (character >> 6));
  } else {
    if (character < 0x10000) {
      add(0xe0 | (character >> 12));
    } else {
      add(0xf0 | (character >> 18));
      add(0x80 | ((character >> 12) & 0x3f));
    }
    add(0x80 | ((character >> 6) & 0x3f));
  }
  add(0x80 | (character & 0x3f));
}

void check_utf8(std::string_view text, const std::string& path) {
  for (std::size_t at = 0; at < text.size();)
    if (!next_character(text, at))
      throw FileError("{}: byte {} (line {}), 0x{:02x}, is not UTF-8: convert the file to UTF-8", path, at,
                      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1,
                      static_cast<unsigned char>(text[at]));
}

}  // namespace lockstep::data
