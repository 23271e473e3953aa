#include "src/data/tokenizers/added_tokens.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/data/unicode/unicode_text.h"

namespace lockstep::data {

namespace {

char32_t character_at(std::string_view text, std::size_t at) { return next_character(text, at).value(); }

std::size_t start_of_last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80) --at;
  return at;
}

}  // namespace

void TokenFinder::add(std::string_view text, std::size_t token) {
  std::size_t node = 0;
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    std::size_t next = node == 0 ? first_[byte] : child(node, byte);
    if (next == kNone) {
      next = nodes_.size();
      nodes_.emplace_back();
      if (node == 0)
        first_[byte] = next;
      else
        nodes_[node].next.emplace_back(byte, next);
    }
    node = next;
  }
  if (node != 0 && nodes_[node].token == kNone) nodes_[node].token = token;
}

std::size_t TokenFinder::child(std::size_t node, unsigned char byte) const {
  for (const auto& [each, next] : nodes_[node].next)
    if (each == byte) return next;
  return kNone;
}

bool TokenFinder::find(std::string_view text, std::size_t from, Span& match, std::size_t& token) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    std::size_t node = first_[static_cast<unsigned char>(text[begin])];
    bool is_found = false;
    for (std::size_t at = begin + 1; node != kNone; ++at) {
      if (nodes_[node].token != kNone) {
        match = {begin, at};
        token = nodes_[node].token;
        is_found = true;
      }
      node = at < text.size() ? child(node, static_cast<unsigned char>(text[at])) : kNone;
    }
    if (is_found) return true;
  }
  return false;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens,
                         const std::function<std::string(const std::string&)>& normalize)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    AddedToken& token = tokens_[i];
    if (!by_id_.emplace(token.id, i).second || !by_content_.emplace(token.content, i).second)
      throw InvalidArgument("token '{}' with the id {} has the content or the id of another added token", token.content,
                            token.id);
    token.decoded = token.is_normalized ? normalize(token.content) : token.content;
  }
  // Special tokens come first, and of equal texts the first counts.
  for (const bool is_special : {true, false})
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      if (tokens_[i].is_special == is_special)
        (tokens_[i].is_normalized ? in_normalized_ : in_original_).add(tokens_[i].decoded, i);
}

const AddedToken* AddedTokens::of_id(std::int64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::of_content(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

bool AddedTokens::widen(const AddedToken& token, std::string_view text, std::size_t from, Span& match) {
  if (token.is_single_word) {
    const std::string_view before = text.substr(0, match.begin);
    if (!before.empty() && is_word_character(character_at(before, start_of_last_character(before)))) return false;
    if (match.end < text.size() && is_word_character(character_at(text, match.end))) return false;
  }
  while (token.strips_left && match.begin > from) {
    const std::size_t last = start_of_last_character(text.substr(0, match.begin));
    if (!is_white_space(character_at(text, last))) break;
    match.begin = last;
  }
  for (std::size_t at = match.end; token.strips_right && at < text.size(); match.end = at)
    if (!is_white_space(next_character(text, at).value())) break;
  return true;
}

}  // namespace lockstep::data
