#include "src/data/tokenizers/decoders.h"

#include <algorithm>
#include <utility>

#include "src/data/token_models/byte_letters.h"
#include "src/data/tokenizers/file_component.h"
#include "src/data/unicode/unicode_text.h"

namespace lockstep::data {

namespace {

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

std::string joined(const std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

void replace_all(std::string& text, std::string_view old, std::string_view by) {
  if (old.empty()) return;
  for (std::size_t at = text.find(old); at != std::string::npos; at = text.find(old, at + by.size()))
    text.replace(at, old.size(), by);
}

class DecodeByteLevel : public TokenDecoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens)
      if (!append_spelled_bytes(token, bytes)) bytes += token;
    tokens.assign(1, with_replacement_characters(bytes));
  }
};

class DecodeWordPiece : public TokenDecoder {
 public:
  explicit DecodeWordPiece(const FileComponent& component)
      : prefix_(component.text("prefix", "##")), cleans_(component.flag("cleanup", true)) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0) token = token.starts_with(prefix_) ? token.substr(prefix_.size()) : " " + token;
      if (cleans_) clean(token);
    }
  }

 private:
  // As in English: no space before a full stop, or within a contraction.
  static void clean(std::string& token) {
    constexpr std::pair<std::string_view, std::string_view> kRules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [old, by] : kRules) replace_all(token, old, by);
  }

  std::string prefix_;
  bool cleans_;
};

class DecodeMetaspace : public TokenDecoder {
 public:
  explicit DecodeMetaspace(const FileComponent& component)
      : replacement_(component.text("replacement")),
        has_prefix_(component.has("prepend_scheme") ? component.text("prepend_scheme") != "never"
                                                    : component.flag("add_prefix_space", true)) {
    std::size_t at = 0;
    if (!next_character(replacement_, at) || at != replacement_.size())
      component.refuse(fmt::format("'replacement' is '{}'; expected one character", replacement_));
  }
  void decode(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], replacement_, i == 0 && has_prefix_ ? "" : " ");
  }

 private:
  std::string replacement_;
  bool has_prefix_;
};

// <0x41> is a byte. Bytes that are not UTF-8 together become a replacement character each.
class DecodeBytes : public TokenDecoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::vector<std::string> decoded;
    std::string bytes;
    for (std::string& token : tokens) {
      if (take_byte(token, bytes)) continue;
      put(bytes, decoded);
      decoded.push_back(std::move(token));
    }
    put(bytes, decoded);
    tokens = std::move(decoded);
  }

 private:
  static bool take_byte(const std::string& token, std::string& bytes) {
    constexpr std::string_view kDigits = "0123456789ABCDEF0123456789abcdef";
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return false;
    const std::size_t high = kDigits.find(token[3]), low = kDigits.find(token[4]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    bytes.push_back(static_cast<char>((high % 16) * 16 + low % 16));
    return true;
  }
  static void put(std::string& bytes, std::vector<std::string>& decoded) {
    std::size_t at = 0;
    while (at < bytes.size() && next_character(bytes, at)) {
    }
    if (at < bytes.size())
      decoded.insert(decoded.end(), bytes.size(), std::string(kReplacementCharacter));
    else if (!bytes.empty())
      decoded.push_back(bytes);
    bytes.clear();
  }
};

class DecodeFuse : public TokenDecoder {
 public:
  void decode(std::vector<std::string>& tokens) const override { tokens.assign(1, joined(tokens)); }
};

class DecodeReplace : public TokenDecoder {
 public:
  explicit DecodeReplace(const FileComponent& component)
      : pattern_(component.pattern("pattern")), content_(component.text("content")) {}
  void decode(std::vector<std::string>& tokens) const override {
    PatternScratch scratch;
    for (std::string& token : tokens) {
      std::string replaced;
      std::size_t end = 0;
      pattern_.visit_matches(token, scratch, [&](Span match) {
        replaced.append(token, end, match.begin - end) += content_;
        end = match.end;
      });
      if (end > 0 || !replaced.empty()) token = replaced.append(token, end);
    }
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

// Takes up to `start` of a character from the begin of each token, and up to `stop` from its end.
class DecodeStrip : public TokenDecoder {
 public:
  explicit DecodeStrip(const FileComponent& component)
      : content_(component.text("content")), start_(component.integer("start")), stop_(component.integer("stop")) {
    std::size_t at = 0;
    if (!next_character(content_, at) || at != content_.size())
      component.refuse(fmt::format("'content' is '{}'; expected one character", content_));
  }
  void decode(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::int64_t i = 0; i < start_ && rest.starts_with(content_); ++i) rest.remove_prefix(content_.size());
      for (std::int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i) rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  std::int64_t start_, stop_;
};

class DecodeEndSuffix : public TokenDecoder {
 public:
  explicit DecodeEndSuffix(const FileComponent& component) : suffix_(component.text("suffix", "</w>")) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size() && !suffix_.empty(); ++i)
      replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;
};

void add_decoder(TokenDecoders& all, const FileComponent& component) {
  const auto add = [&](std::unique_ptr<TokenDecoder> each) { all.push_back(std::move(each)); };
  const std::string kind = component.kind();
  if (kind == "Sequence") {
    for (const FileComponent& each : component.list("decoders")) add_decoder(all, each);
    return;
  }
  if (kind == "ByteLevel") return add(std::make_unique<DecodeByteLevel>());
  if (kind == "WordPiece") return add(std::make_unique<DecodeWordPiece>(component));
  if (kind == "Metaspace") return add(std::make_unique<DecodeMetaspace>(component));
  if (kind == "ByteFallback") return add(std::make_unique<DecodeBytes>());
  if (kind == "Fuse") return add(std::make_unique<DecodeFuse>());
  if (kind == "Replace") return add(std::make_unique<DecodeReplace>(component));
  if (kind == "Strip") return add(std::make_unique<DecodeStrip>(component));
  if (kind == "BPEDecoder") return add(std::make_unique<DecodeEndSuffix>(component));
  component.refuse_kind("BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip, WordPiece");
}

}  // namespace

TokenDecoders decoders_of(const FileComponent& component) {
  TokenDecoders all;
  if (!component.is_null()) add_decoder(all, component);
  return all;
}

}  // namespace lockstep::data
