#include "src/train/files/xml_text.h"

#include <cstddef>
#include <optional>

#include "src/data/formats/utf8.h"

namespace lockstep::train {

namespace {

// The characters that XML 1.0 allows (section 2.2).
bool is_allowed(char32_t character) {
  if (character < 0x20) return character == '\t' || character == '\n' || character == '\r';
  return character != 0xFFFE && character != 0xFFFF;
}

}  // namespace

std::string xml_text(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const std::optional<char32_t> character = data::next_character(text, at);
    if (!character || !is_allowed(*character)) {
      out += '?';
      at = begin + 1;
    } else if (at - begin > 1) {
      out.append(text, begin, at - begin);
    } else {
      const char c = text[begin];
      out += c == '&'    ? "&amp;"
             : c == '<'  ? "&lt;"
             : c == '>'  ? "&gt;"
             : c == '"'  ? "&quot;"
             : c == '\'' ? "&apos;"
                         : std::string(1, c);
    }
  }
  return out;
}

}  // namespace lockstep::train
