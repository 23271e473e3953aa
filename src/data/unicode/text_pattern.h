// Patterns of tokenizer files: a plain string, or a regular expression.
//
// `tokenizers` has its regular expressions matched by Oniguruma, whose classes and flags are not all those of PCRE2.
// The differences are translated; a construct without a translation is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "src/data/formats/utf8.h"

namespace lockstep::data {

// Bytes begin to end - 1 of a text.
struct Span {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
  std::string_view of(std::string_view text) const { return text.substr(begin, end - begin); }
};

// Memory for matching, of any patterns. Only one thread at a time may use it.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

 private:
  friend class TextPattern;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

class TextPattern {
 public:
  static TextPattern string(std::string text);
  static TextPattern regex(const std::string& expression);  // throws InvalidArgument

  // Calls visit(Span) for each match, in order. Matches do not overlap; an empty one is left out directly behind
  // another. An empty string matches nowhere. Throws Error if matching takes more steps than PCRE2 allows.
  template <typename Visit> void visit_matches(std::string_view text, PatternScratch& scratch, Visit&& visit) const {
    std::size_t at = 0, last_end = std::string_view::npos;
    for (Span match; at <= text.size() && find(text, at, scratch, match);) {
      const bool is_new = match.size() > 0 || match.begin != last_end;
      if (is_new) visit(match);
      at = last_end = match.end;
      if (!is_new && !next_character(text, at)) ++at;
    }
  }

 private:
  TextPattern() = default;
  bool find(std::string_view text, std::size_t from, PatternScratch& scratch, Span& match) const;

  std::string text_;
  std::shared_ptr<const void> code_;  // a pcre2_code; null: text_ is a plain string
  bool has_machine_code_ = false;
};

// The same expression for PCRE2. Throws InvalidArgument for a construct without a translation. For tests.
std::string pcre2_expression(std::string_view expression);

}  // namespace lockstep::data
