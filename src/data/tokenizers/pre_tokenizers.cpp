#include "src/data/tokenizers/pre_tokenizers.h"

#include <optional>
#include <utility>

#include "src/data/token_models/byte_letters.h"
#include "src/data/tokenizers/file_component.h"
#include "src/data/unicode/unicode_text.h"

namespace lockstep::data {

namespace {

// GPT-2's words (encoder.py of openai/gpt-2): contractions; letters, digits and others, each with a space before;
// spaces, the last of which belongs to the next word.
constexpr const char* kWordsOfGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class CutAtPattern : public PreTokenizer {
 public:
  CutAtPattern(TextPattern pattern, CutBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void cut(CutText& text, PatternScratch& scratch) const override {
    text.cut_pieces([&](Span piece, std::vector<Span>& cuts) {
      PieceCutter cutter(behavior_, cuts);
      std::size_t end = piece.begin;
      pattern_.visit_matches(piece.of(text.text()), scratch, [&](Span match) {
        const Span delimiter{piece.begin + match.begin, piece.begin + match.end};
        if (end < delimiter.begin) cutter.add({end, delimiter.begin}, invert_);
        cutter.add(delimiter, !invert_);
        end = delimiter.end;
      });
      if (end < piece.end) cutter.add({end, piece.end}, invert_);
      cutter.finish();
    });
  }

 private:
  TextPattern pattern_;
  CutBehavior behavior_;
  bool invert_;
};

// Delimiters are single characters of a kind.
class CutAtCharacters : public PreTokenizer {
 public:
  CutAtCharacters(bool (*is_delimiter)(char32_t), CutBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void cut(CutText& text, PatternScratch&) const override {
    text.cut_pieces([&](Span piece, std::vector<Span>& cuts) {
      PieceCutter cutter(behavior_, cuts);
      std::size_t end = piece.begin, at = piece.begin;
      visit_text(piece.of(text.text()), [&](char32_t character, std::string_view bytes) {
        const Span here{at, at + bytes.size()};
        at = here.end;
        if (!is_delimiter_(character)) return;
        if (end < here.begin) cutter.add({end, here.begin}, false);
        cutter.add(here, true);
        end = here.end;
      });
      if (end < piece.end) cutter.add({end, piece.end}, false);
    });
  }

 private:
  bool (*is_delimiter_)(char32_t);
  CutBehavior behavior_;
};

// Runs of word characters, and runs of characters that are neither those nor white space.
class CutToWords : public PreTokenizer {
 public:
  void cut(CutText& text, PatternScratch&) const override {
    enum class Kind { kSpace, kWord, kOther };
    text.cut_pieces([&](Span piece, std::vector<Span>& cuts) {
      Kind run = Kind::kSpace;
      std::size_t at = piece.begin;
      visit_text(piece.of(text.text()), [&](char32_t character, std::string_view bytes) {
        const Kind kind = is_word_character(character) ? Kind::kWord
                          : is_white_space(character)  ? Kind::kSpace
                                                       : Kind::kOther;
        const Span here{at, at + bytes.size()};
        at = here.end;
        if (kind == run && kind != Kind::kSpace)
          cuts.back().end = here.end;
        else if (kind != Kind::kSpace)
          cuts.push_back(here);
        run = kind;
      });
    });
  }
};

class AddPrefixSpace : public PreTokenizer {
 public:
  void cut(CutText& text, PatternScratch&) const override {
    text.rewrite_pieces([&](Span piece, std::string& written) {
      const std::string_view old = piece.of(text.text());
      if (!old.starts_with(' ')) written += ' ';
      written += old;
    });
  }
};

class SpellBytes : public PreTokenizer {
 public:
  void cut(CutText& text, PatternScratch&) const override {
    text.rewrite_pieces([&](Span piece, std::string& written) { append_byte_letters(piece.of(text.text()), written); });
  }
};

enum class PrependScheme { kAlways, kFirst, kNever };

class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme) : replacement_(std::move(replacement)), scheme_(scheme) {}
  void cut(CutText& text, PatternScratch&) const override {
    text.rewrite_pieces([&](Span piece, std::string& written) {
      const std::string_view old = piece.of(text.text());
      const bool may_prepend =
          scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && text.begins_input(piece));
      if (may_prepend && !old.starts_with(' ') && !old.starts_with(replacement_)) written += replacement_;
      for (const char c : old) c == ' ' ? written += replacement_ : written += c;
    });
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
};

CutBehavior behavior_of(const FileComponent& component, std::optional<CutBehavior> otherwise = std::nullopt) {
  if (otherwise && !component.has("behavior")) return *otherwise;
  return component.choice<CutBehavior>("behavior", {{"Removed", CutBehavior::kRemoved},
                                                    {"Isolated", CutBehavior::kIsolated},
                                                    {"MergedWithPrevious", CutBehavior::kMergedWithPrevious},
                                                    {"MergedWithNext", CutBehavior::kMergedWithNext},
                                                    {"Contiguous", CutBehavior::kContiguous}});
}

void add_characters(PreTokenizers& all, bool (*is_delimiter)(char32_t), CutBehavior behavior) {
  all.steps.push_back(std::make_unique<CutAtCharacters>(is_delimiter, behavior));
}

void add_byte_level(PreTokenizers& all, const FileComponent& component) {
  if (component.flag("add_prefix_space", true)) all.steps.push_back(std::make_unique<AddPrefixSpace>());
  if (component.flag("use_regex", true))
    all.steps.push_back(
        std::make_unique<CutAtPattern>(TextPattern::regex(kWordsOfGpt2), CutBehavior::kIsolated, false));
  all.ends_in_byte_level = true;
}

void add_metaspace(PreTokenizers& all, const FileComponent& component) {
  const std::string replacement = component.text("replacement");
  std::size_t at = 0;
  if (!next_character(replacement, at) || at != replacement.size())
    component.refuse(fmt::format("'replacement' is '{}'; expected one character", replacement));
  PrependScheme scheme = component.flag("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
  if (component.has("prepend_scheme"))
    scheme = component.choice<PrependScheme>(
        "prepend_scheme",
        {{"always", PrependScheme::kAlways}, {"first", PrependScheme::kFirst}, {"never", PrependScheme::kNever}});
  all.steps.push_back(std::make_unique<Metaspace>(replacement, scheme));
  if (component.flag("split", true))
    all.steps.push_back(
        std::make_unique<CutAtPattern>(TextPattern::string(replacement), CutBehavior::kMergedWithNext, false));
}

void add_pre_tokenizer(PreTokenizers& all, const FileComponent& component) {
  const std::string kind = component.kind();
  if (kind == "Sequence") {
    for (const FileComponent& each : component.list("pretokenizers")) add_pre_tokenizer(all, each);
    return;
  }
  if (std::exchange(all.ends_in_byte_level, false)) all.steps.push_back(std::make_unique<SpellBytes>());
  if (kind == "ByteLevel") return add_byte_level(all, component);
  if (kind == "Metaspace") return add_metaspace(all, component);
  if (kind == "Whitespace") return all.steps.push_back(std::make_unique<CutToWords>());
  if (kind == "WhitespaceSplit") return add_characters(all, is_white_space, CutBehavior::kRemoved);
  if (kind == "Punctuation") return add_characters(all, is_punctuation, behavior_of(component, CutBehavior::kIsolated));
  if (kind == "Digits")
    return add_characters(
        all, is_number, component.flag("individual_digits", false) ? CutBehavior::kIsolated : CutBehavior::kContiguous);
  if (kind == "BertPreTokenizer") {
    add_characters(all, is_white_space, CutBehavior::kRemoved);
    return add_characters(all, is_punctuation, CutBehavior::kIsolated);
  }
  if (kind == "Split")
    return all.steps.push_back(std::make_unique<CutAtPattern>(component.pattern("pattern"), behavior_of(component),
                                                              component.flag("invert", false)));
  component.refuse_kind(
      "BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace, WhitespaceSplit");
}

}  // namespace

PreTokenizers pre_tokenizers_of(const FileComponent& component) {
  PreTokenizers all;
  if (!component.is_null()) add_pre_tokenizer(all, component);
  return all;
}

}  // namespace lockstep::data
