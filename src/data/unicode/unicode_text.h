// Properties, normal forms and cases of Unicode's characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/formats/utf8.h"

namespace lockstep::data {

bool is_white_space(char32_t character);        // the property White_Space
bool is_punctuation(char32_t character);        // the categories P, and ASCII's punctuation, some of which are symbols
bool is_number(char32_t character);             // the categories N
bool is_word_character(char32_t character);     // letters, marks, digits, connectors and joiners (UTS #18, \w)
bool is_mark(char32_t character);               // the categories M
bool is_nonspacing_mark(char32_t character);    // Mn
bool is_control_or_format(char32_t character);  // Cc, Cf, Co, Cs; not the unassigned characters

void append_lower_case(std::string& text, char32_t character);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Replaces `result`. `scratch` is memory that calls may share.
void normalize(std::string_view text, NormalForm form, std::vector<std::int32_t>& scratch, std::string& result);

bool is_ascii(std::string_view text);

// The end of the extended grapheme cluster (UAX #29), a character as its reader sees it, that begins at `begin`, where
// one before ends.
std::size_t grapheme_end(std::string_view text, std::size_t begin);

// Bytes that are not UTF-8 become U+FFFD, one for each longest begin of a character (The Unicode Standard, 3.9, U+FFFD
// Substitution of Maximal Subparts).
std::string with_replacement_characters(std::string_view bytes);

// Calls visit(character, its bytes) for each character of a UTF-8 text.
template <typename Visit> void visit_text(std::string_view text, Visit&& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t character = next_character(text, at).value();
    visit(character, text.substr(begin, at - begin));
  }
}

}  // namespace lockstep::data
