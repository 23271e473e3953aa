#include "src/train/files/xml_text.h"

#include <algorithm>
#include <cstddef>

namespace lockstep {

namespace {

// How many bytes the UTF-8 character at `at` takes when it is one that XML 1.0 (section 2.2) allows; else 0.
std::size_t character_at(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + size > text.size()) return 0;
  unsigned code = first & (0xFFU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(at + i) & 0x3FU);
  }
  const unsigned least = size == 4 ? 0x10000 : size == 3 ? 0x800 : 0x80;
  const bool forbidden =
      code < least || (code >= 0xD800 && code <= 0xDFFF) || code == 0xFFFE || code == 0xFFFF || code > 0x10FFFF;
  return forbidden ? 0 : size;
}

}  // namespace

std::string xml_text(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = character_at(text, i);
    const char c = size == 0 ? '?' : text[i];
    if (size > 1) {
      out.append(text, i, size);
    } else {
      out += c == '&'    ? "&amp;"
             : c == '<'  ? "&lt;"
             : c == '>'  ? "&gt;"
             : c == '"'  ? "&quot;"
             : c == '\'' ? "&apos;"
                         : std::string(1, c);
    }
    i += std::max<std::size_t>(size, 1);
  }
  return out;
}

}  // namespace lockstep
