#include "src/data/token_models/byte_letters.h"

#include <array>

#include "src/data/formats/utf8.h"

namespace lockstep::data {

namespace {

constexpr std::size_t kFirstOther = 0x100, kOthers = 0x44;

struct ByteLetters {
  std::array<std::string, 256> letters;            // of bytes, as UTF-8
  std::array<int, kFirstOther + kOthers> bytes{};  // of letters; -1: spells no byte

  ByteLetters() {
    bytes.fill(-1);
    std::size_t other = kFirstOther;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const bool is_printed = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      const std::size_t letter = is_printed ? byte : other++;
      append_character(letters[byte], static_cast<char32_t>(letter));
      bytes[letter] = static_cast<int>(byte);
    }
  }
};

const ByteLetters& byte_letters() {
  static const ByteLetters kTable;
  return kTable;
}

}  // namespace

void append_byte_letters(std::string_view bytes, std::string& text) {
  for (const char byte : bytes) text += byte_letters().letters[static_cast<unsigned char>(byte)];
}

bool append_spelled_bytes(std::string_view text, std::string& bytes) {
  const std::size_t before = bytes.size();
  for (std::size_t at = 0; at < text.size();) {
    const std::optional<char32_t> letter = next_character(text, at);
    const int byte = letter && *letter < byte_letters().bytes.size() ? byte_letters().bytes[*letter] : -1;
    if (byte < 0) {
      bytes.resize(before);
      return false;
    }
    bytes.push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace lockstep::data
