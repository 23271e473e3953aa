// The added tokens of tokenizer.json: they are found in the text before anything else, and never split.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/data/unicode/text_pattern.h"

namespace lockstep::data {

struct AddedToken {
  std::string content;
  std::int64_t id = 0;
  bool is_special = false;
  bool is_normalized = false;                      // it is looked for in the normalized text
  bool is_single_word = false;                     // only where no word character is next to it
  bool strips_left = false, strips_right = false;  // it takes the white space next to it
  std::string decoded = {};  // its text in decoders; AddedTokens sets it: the normalized content if is_normalized
};

// Finds the longest token at the first place where there is one.
class TokenFinder {
 public:
  // `token` is the index of a token; of equal texts the first counts, and an empty one is left out.
  void add(std::string_view text, std::size_t token);
  bool is_empty() const { return nodes_.size() == 1; }

  // The next match from `from` on. False: there is none.
  bool find(std::string_view text, std::size_t from, Span& match, std::size_t& token) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::size_t>> next;  // by byte; few
    std::size_t token = kNone;
  };
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t child(std::size_t node, unsigned char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<std::size_t> first_ = std::vector<std::size_t>(256, kNone);  // the nodes of first bytes
};

class AddedTokens {
 public:
  // A token's normalized text is what `normalize` makes of its content. Throws InvalidArgument for two tokens of one id
  // or content.
  AddedTokens(std::vector<AddedToken> tokens, const std::function<std::string(const std::string&)>& normalize);

  const std::vector<AddedToken>& all() const { return tokens_; }
  const AddedToken* of_id(std::int64_t id) const;  // null: no added token has it
  const AddedToken* of_content(std::string_view content) const;

  // Cuts the text: calls visit_text(Span) for what is between tokens, if it is not empty, and visit_token(token).
  // `normalized`: with the tokens that are looked for in the normalized text; else with the others.
  template <typename VisitText, typename VisitToken>
  void cut(std::string_view text, bool normalized, VisitText&& visit_text, VisitToken&& visit_token) const {
    const TokenFinder& finder = normalized ? in_normalized_ : in_original_;
    std::size_t end = 0, at = 0;
    Span match;
    std::size_t token = 0;
    while (!finder.is_empty() && finder.find(text, at, match, token)) {
      at = match.end;
      if (!widen(tokens_[token], text, end, match)) continue;
      if (end < match.begin) visit_text(Span{end, match.begin});
      visit_token(tokens_[token]);
      end = match.end;
    }
    if (end < text.size()) visit_text(Span{end, text.size()});
  }

 private:
  // Takes the white space that belongs to the token, but none before `from`. False: the token is no word of its own.
  static bool widen(const AddedToken& token, std::string_view text, std::size_t from, Span& match);

  std::vector<AddedToken> tokens_;
  TokenFinder in_original_, in_normalized_;
  std::unordered_map<std::int64_t, std::size_t> by_id_;
  std::unordered_map<std::string, std::size_t> by_content_;
};

}  // namespace lockstep::data
