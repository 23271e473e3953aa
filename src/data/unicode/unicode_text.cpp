#include "src/data/unicode/unicode_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

utf8proc_category_t category_of(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool is_within(char32_t character, char32_t first, char32_t last) { return character >= first && character <= last; }

// How many bytes at the start of `bytes`, which do not begin with a character, are the begin of one; at least 1.
std::size_t maximal_subpart(std::string_view bytes) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0;
  };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0xe0 || first > 0xf4) return 1;
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (second < low || second > high) return 1;
  return first >= 0xf0 && (byte(2) & 0xc0U) == 0x80 ? 3 : 2;
}

}  // namespace

bool is_white_space(char32_t character) {
  if (character < 0x80) return character == ' ' || is_within(character, 0x09, 0x0d);
  if (character == 0x85) return true;
  const utf8proc_category_t category = category_of(character);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_punctuation(char32_t character) {
  if (character < 0x80)
    return is_within(character, '!', '/') || is_within(character, ':', '@') || is_within(character, '[', '`') ||
           is_within(character, '{', '~');
  const utf8proc_category_t category = category_of(character);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_number(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool is_word_character(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) return true;  // L, M, Nd, Nl
  if (category == UTF8PROC_CATEGORY_PC || is_within(character, 0x200c, 0x200d)) return true;
  // Symbols with the property Other_Alphabetic.
  return is_within(character, 0x24b6, 0x24e9) || is_within(character, 0x1f130, 0x1f149) ||
         is_within(character, 0x1f150, 0x1f169) || is_within(character, 0x1f170, 0x1f189);
}

bool is_mark(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t character) { return category_of(character) == UTF8PROC_CATEGORY_MN; }

bool is_control_or_format(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  return category >= UTF8PROC_CATEGORY_CC && category <= UTF8PROC_CATEGORY_CO;
}

void append_lower_case(std::string& text, char32_t character) {
  if (character < 0x80)
    return text.push_back(static_cast<char>(is_within(character, 'A', 'Z') ? character + ('a' - 'A') : character));
  // The only character whose lower case has two (SpecialCasing.txt, without conditions).
  if (character == 0x130) return void(text += "i\xcc\x87");
  append_character(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
}

bool is_ascii(std::string_view text) {
  std::size_t at = 0;
  for (std::uint64_t eight = 0; at + sizeof eight <= text.size(); at += sizeof eight) {
    std::memcpy(&eight, text.data() + at, sizeof eight);
    if ((eight & 0x8080808080808080U) != 0) return false;
  }
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::size_t grapheme_end(std::string_view text, std::size_t begin) {
  const auto is_simple = [&](std::size_t at) {
    return static_cast<unsigned char>(text[at]) < 0x80 && text[at] != '\r';
  };
  std::size_t end = begin;
  auto last = static_cast<utf8proc_int32_t>(next_character(text, end).value());
  utf8proc_int32_t state = 0;
  for (std::size_t next = end; end < text.size(); end = next) {
    if (is_simple(begin) && is_simple(end)) return end;
    const auto character = static_cast<utf8proc_int32_t>(next_character(text, next).value());
    if (utf8proc_grapheme_break_stateful(last, character, &state)) return end;
    last = character;
  }
  return end;
}

void normalize(std::string_view text, NormalForm form, std::vector<std::int32_t>& scratch, std::string& result) {
  if (is_ascii(text)) return void(result.assign(text));
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool is_compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (is_compatible ? UTF8PROC_COMPAT : 0));
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  if (scratch.size() < text.size()) scratch.resize(text.size());
  utf8proc_ssize_t count = 0;
  const auto decompose = [&] {
    count = utf8proc_decompose(bytes, size, scratch.data(), static_cast<utf8proc_ssize_t>(scratch.size()), options);
  };
  decompose();
  if (count > static_cast<utf8proc_ssize_t>(scratch.size())) {
    scratch.resize(static_cast<std::size_t>(count));
    decompose();
  }
  if (count >= 0) count = utf8proc_normalize_utf32(scratch.data(), count, options);
  if (count < 0) throw Error("Tokenizer: a text of {} bytes cannot be normalized: {}", size, utf8proc_errmsg(count));
  result.clear();
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_character(result, static_cast<char32_t>(scratch[static_cast<std::size_t>(i)]));
}

std::string with_replacement_characters(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t begin = at;
    if (next_character(bytes, at)) {
      text += bytes.substr(begin, at - begin);
    } else {
      text += "\xef\xbf\xbd";
      at += maximal_subpart(bytes.substr(at));
    }
  }
  return text;
}

}  // namespace lockstep::data
