#include "src/data/token_models/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "lockstep/core/error.h"
#include "src/data/formats/utf8.h"

namespace lockstep::data {

namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score

ByteTrie trie_of(const Vocabulary& vocabulary) {
  std::vector<ByteTrie::Entry> entries;
  for (std::int64_t id = 0; id < vocabulary.size(); ++id)
    if (const std::string* const token = vocabulary.token(id); token != nullptr && !token->empty())
      entries.emplace_back(*token, static_cast<std::int32_t>(id));
  return ByteTrie(std::move(entries));
}

}  // namespace

UnigramModel::UnigramModel(Vocabulary vocabulary, const UnigramOptions& options)
    : TokenModel(std::move(vocabulary)),
      tokens_(trie_of(this->vocabulary())),
      scores_(options.scores),
      unknown_score_(*std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty),
      unknown_(static_cast<std::int32_t>(options.unknown.value_or(-1))) {
  if (options.unknown && this->vocabulary().token(*options.unknown) == nullptr)
    throw InvalidArgument("'unk_id' is {}, but the vocab has {} tokens", *options.unknown, this->vocabulary().size());
  for (std::size_t byte = 0; byte < 256; ++byte)
    byte_ids_[byte] = options.byte_fallback ? this->vocabulary().find(fmt::format("<0x{:02X}>", byte)) : -1;
}

// Each place of the word between two characters has the best path that ends there. Of equal sums, that of the token
// which begins first.
void UnigramModel::find_best_path(std::string_view word, std::vector<PathNode>& path) const {
  path.assign(word.size() + 1, {});
  for (std::size_t begin = 0; begin < word.size();) {
    std::size_t end = begin;
    next_character(word, end);
    const double sum = path[begin].sum;
    bool has_character = false;
    const auto offer = [&](std::size_t place, double score, std::int32_t id) {
      PathNode& node = path[place];
      if (node.id >= 0 && sum + score <= node.sum) return;
      node = {sum + score, begin, id};
    };
    tokens_.visit_prefixes(word.substr(begin), [&](std::size_t length, std::int32_t id) {
      has_character = has_character || begin + length == end;
      offer(begin + length, scores_[static_cast<std::size_t>(id)], id);
    });
    if (!has_character) {
      if (unknown_ < 0)
        throw InvalidArgument("Tokenizer: the text has '{}', which no token has, and the file's model has no unk_id",
                              word.substr(begin, end - begin));
      offer(end, unknown_score_, unknown_);
    }
    begin = end;
  }
}

void UnigramModel::encode(std::string_view word, ModelScratch& scratch, std::vector<std::int64_t>& ids) const {
  if (const std::span<const std::int32_t> known = scratch.cache.find(word); !known.empty())
    return void(ids.insert(ids.end(), known.begin(), known.end()));
  const std::size_t before = ids.size();
  find_best_path(word, scratch.path);
  // The path is known from its end: puts the tokens in front of each node's end, so that they can be read from the
  // word's begin.
  std::vector<PathNode>& path = scratch.path;
  for (std::size_t end = word.size(); end > 0; end = path[end].begin) path[path[end].begin].next = end;
  for (std::size_t begin = 0, end = 0; begin < word.size(); begin = end) {
    end = path[begin].next;
    if (path[end].id != unknown_) {
      ids.push_back(path[end].id);
      continue;
    }
    while (end < word.size() && path[path[end].next].id == unknown_) end = path[end].next;
    put_unknown(word.substr(begin, end - begin), ids);
  }
  scratch.cache.put(word, std::span(ids).subspan(before));
}

// The text may also be the unknown token's own.
void UnigramModel::put_unknown(std::string_view text, std::vector<std::int64_t>& ids) const {
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (const std::int32_t id = vocabulary().find(text); id >= 0)
    ids.push_back(id);
  else if (std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; }))
    std::transform(text.begin(), text.end(), std::back_inserter(ids), id_of);
  else
    ids.push_back(unknown_);
}

}  // namespace lockstep::data
