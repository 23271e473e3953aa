#include "src/data/tokenizers/normalizers.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "lockstep/core/error.h"
#include "src/data/formats/base64.h"
#include "src/data/tokenizers/file_component.h"
#include "src/data/unicode/character_map.h"
#include "src/data/unicode/unicode_text.h"

namespace lockstep::data {

namespace {

class ToNormalForm : public Normalizer {
 public:
  explicit ToNormalForm(NormalForm form) : form_(form) {}
  void apply(std::string_view text, NormalizerScratch& scratch, PatternScratch&, std::string& result) const override {
    normalize(text, form_, scratch.characters, result);
  }

 private:
  NormalForm form_;
};

void lower_case(std::string_view text, std::string& result) {
  result.clear();
  visit_text(text, [&](char32_t character, std::string_view) { append_lower_case(result, character); });
}

void without(bool (*is_left_out)(char32_t), std::string_view text, std::string& result) {
  result.clear();
  visit_text(text, [&](char32_t character, std::string_view bytes) {
    if (character < 0x80 || !is_left_out(character)) result += bytes;
  });
}

class LowerCase : public Normalizer {
 public:
  void apply(std::string_view text, NormalizerScratch&, PatternScratch&, std::string& result) const override {
    lower_case(text, result);
  }
};

class StripAccents : public Normalizer {
 public:
  void apply(std::string_view text, NormalizerScratch&, PatternScratch&, std::string& result) const override {
    without(is_mark, text, result);
  }
};

// The blocks that BERT's BasicTokenizer (tokenization.py of google-research/bert) calls Chinese, as `tokenizers` has
// them: it begins one of them at U+2B920 instead of U+2B820.
bool is_chinese(char32_t character) {
  constexpr char32_t kBlocks[][2] = {{0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f},
                                     {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
  for (const auto& [first, last] : kBlocks)
    if (character >= first && character <= last) return true;
  return false;
}

class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(const FileComponent& component)
      : cleans_(component.flag("clean_text", true)),
        spaces_chinese_(component.flag("handle_chinese_chars", true)),
        lowers_(component.flag("lowercase", true)),
        strips_(component.flag("strip_accents", lowers_)) {}

  void apply(std::string_view text, NormalizerScratch& scratch, PatternScratch&, std::string& result) const override {
    std::string& cleaned = strips_ || lowers_ ? scratch.decomposed : result;
    cleaned.clear();
    visit_text(text, [&](char32_t character, std::string_view bytes) { clean(character, bytes, cleaned); });
    if (strips_) {
      normalize(cleaned, NormalForm::kNfd, scratch.characters, result);
      if (!lowers_) {
        std::swap(cleaned, result);
        return without(is_nonspacing_mark, cleaned, result);
      }
      without(is_nonspacing_mark, result, cleaned);
    }
    if (lowers_) lower_case(cleaned, result);
  }

 private:
  void clean(char32_t character, std::string_view bytes, std::string& cleaned) const {
    const bool is_blank = character == '\t' || character == '\n' || character == '\r';
    if (cleans_ && !is_blank && (character == 0xfffd || is_control_or_format(character))) return;
    if (cleans_ && is_white_space(character)) {
      cleaned += ' ';
    } else if (spaces_chinese_ && character >= 0x3400 && is_chinese(character)) {
      (cleaned += ' ').append(bytes) += ' ';
    } else {
      cleaned += bytes;
    }
  }

  bool cleans_, spaces_chinese_, lowers_, strips_;
};

class ReplaceText : public Normalizer {
 public:
  explicit ReplaceText(const FileComponent& component)
      : pattern_(component.pattern("pattern")), content_(component.text("content")) {}
  void apply(std::string_view text, NormalizerScratch&, PatternScratch& patterns, std::string& result) const override {
    result.clear();
    std::size_t end = 0;
    pattern_.visit_matches(text, patterns, [&](Span match) {
      result += text.substr(end, match.begin - end);
      result += content_;
      end = match.end;
    });
    result += text.substr(end);
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class PrependText : public Normalizer {
 public:
  explicit PrependText(const FileComponent& component) : content_(component.text("prepend")) {}
  void apply(std::string_view text, NormalizerScratch&, PatternScratch&, std::string& result) const override {
    result.assign(text.empty() ? "" : content_);
    result += text;
  }

 private:
  std::string content_;
};

class StripSpace : public Normalizer {
 public:
  explicit StripSpace(const FileComponent& component)
      : left_(component.flag("strip_left", true)), right_(component.flag("strip_right", true)) {}
  void apply(std::string_view text, NormalizerScratch&, PatternScratch&, std::string& result) const override {
    std::size_t begin = text.size(), end = 0, at = 0;
    visit_text(text, [&](char32_t character, std::string_view bytes) {
      if (!is_white_space(character)) {
        begin = std::min(begin, at);
        end = at + bytes.size();
      }
      at += bytes.size();
    });
    if (!left_) begin = 0;
    if (!right_) end = text.size();
    result.assign(begin < end ? text.substr(begin, end - begin) : "");
  }

 private:
  bool left_, right_;
};

// SentencePiece's rules for machine translation, nmt, without those of NFKC: no control characters; marks of direction,
// blanks of no width, and others, are spaces.
class NmtNormalizer : public Normalizer {
 public:
  void apply(std::string_view text, NormalizerScratch&, PatternScratch&, std::string& result) const override {
    result.clear();
    visit_text(text, [&](char32_t character, std::string_view bytes) {
      if (is_among(kLeftOut, character)) return;
      result += is_among(kSpaces, character) ? " " : bytes;
    });
  }

 private:
  using Block = char32_t[2];
  static constexpr Block kLeftOut[] = {{0x01, 0x08}, {0x0b, 0x0b}, {0x0e, 0x1f},
                                       {0x7f, 0x7f}, {0x8f, 0x8f}, {0x9f, 0x9f}};
  static constexpr Block kSpaces[] = {{0x09, 0x0a},     {0x0c, 0x0d},     {0x1680, 0x1680}, {0x200b, 0x200f},
                                      {0x2028, 0x2029}, {0x2581, 0x2581}, {0xfeff, 0xfeff}, {0xfffd, 0xfffd}};
  template <std::size_t N> static bool is_among(const Block (&blocks)[N], char32_t character) {
    return std::any_of(std::begin(blocks), std::end(blocks),
                       [&](const Block& each) { return character >= each[0] && character <= each[1]; });
  }
};

class PrecompiledRules : public Normalizer {
 public:
  explicit PrecompiledRules(const FileComponent& component) : map_(map_of(component)) {}
  void apply(std::string_view text, NormalizerScratch&, PatternScratch&, std::string& result) const override {
    map_.apply(text, result);
  }

 private:
  static CharacterMap map_of(const FileComponent& component) {
    const std::optional<std::string> bytes = base64_decoded(component.text("precompiled_charsmap"));
    if (!bytes) component.refuse("'precompiled_charsmap' is not base64");
    try {
      return CharacterMap(*bytes);
    } catch (const InvalidArgument& error) {
      component.refuse(fmt::format("'precompiled_charsmap': {}", error.what()));
    }
  }

  CharacterMap map_;
};

void add_normalizer(Normalizers& all, const FileComponent& component) {
  const auto add = [&](std::unique_ptr<Normalizer> each) { all.push_back(std::move(each)); };
  const std::string kind = component.kind();
  if (kind == "Sequence") {
    for (const FileComponent& each : component.list("normalizers")) add_normalizer(all, each);
    return;
  }
  if (kind == "NFC") return add(std::make_unique<ToNormalForm>(NormalForm::kNfc));
  if (kind == "NFD") return add(std::make_unique<ToNormalForm>(NormalForm::kNfd));
  if (kind == "NFKC") return add(std::make_unique<ToNormalForm>(NormalForm::kNfkc));
  if (kind == "NFKD") return add(std::make_unique<ToNormalForm>(NormalForm::kNfkd));
  if (kind == "Lowercase") return add(std::make_unique<LowerCase>());
  if (kind == "StripAccents") return add(std::make_unique<StripAccents>());
  if (kind == "BertNormalizer") return add(std::make_unique<BertNormalizer>(component));
  if (kind == "Replace") return add(std::make_unique<ReplaceText>(component));
  if (kind == "Prepend") return add(std::make_unique<PrependText>(component));
  if (kind == "Strip") return add(std::make_unique<StripSpace>(component));
  if (kind == "Nmt") return add(std::make_unique<NmtNormalizer>());
  if (kind == "Precompiled") return add(std::make_unique<PrecompiledRules>(component));
  component.refuse_kind(
      "BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Sequence, Strip, "
      "StripAccents");
}

}  // namespace

Normalizers normalizers_of(const FileComponent& component) {
  Normalizers all;
  if (!component.is_null()) add_normalizer(all, component);
  return all;
}

std::string_view normalized(const Normalizers& normalizers, std::string_view text, NormalizerScratch& scratch,
                            PatternScratch& patterns) {
  for (std::size_t i = 0; i < normalizers.size(); ++i) {
    normalizers[i]->apply(text, scratch, patterns, scratch.texts[i % 2]);
    text = scratch.texts[i % 2];
  }
  return text;
}

}  // namespace lockstep::data
