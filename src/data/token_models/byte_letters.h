// Byte-level vocabularies spell each byte as a printable letter (encoder.py of openai/gpt-2): the bytes that Latin-1
// prints as themselves, and the others, in order, as U+0100, U+0101, ...
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

void append_byte_letters(std::string_view bytes, std::string& text);
// Appends the bytes that `text` spells; false, and appends nothing, if it has a character that spells no byte.
bool append_spelled_bytes(std::string_view text, std::string& bytes);

}  // namespace lockstep::data
