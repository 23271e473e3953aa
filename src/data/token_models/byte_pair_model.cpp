#include "src/data/token_models/byte_pair_model.h"

#include <algorithm>
#include <limits>

#include "lockstep/core/error.h"
#include "src/data/formats/utf8.h"
#include "src/data/token_models/byte_letters.h"

namespace lockstep::data {

namespace {

constexpr std::size_t kFewSymbols = 64;  // up to here, searching all pairs again is faster than a heap
constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

std::int32_t merged_token(const Vocabulary& vocabulary, const std::pair<std::string, std::string>& merge,
                          std::size_t number, std::size_t prefix) {
  const auto& [left, right] = merge;
  const std::string both = left + right.substr(std::min(prefix, right.size()));
  for (const std::string* const token : {&left, &right, &both})
    if (vocabulary.find(*token) < 0)
      throw InvalidArgument("merge {}, '{}' with '{}', needs the token '{}', which is not in the vocabulary", number,
                            left, right, *token);
  return vocabulary.find(both);
}

// The heap's first is the chance that comes next.
bool comes_later(const MergeChance& a, const MergeChance& b) {
  return a.order != b.order ? a.order > b.order : a.at > b.at;
}

}  // namespace

BytePairModel::BytePairModel(Vocabulary vocabulary, const BytePairOptions& options)
    : TokenModel(std::move(vocabulary)),
      fuse_unknown_(options.fuse_unknown),
      byte_fallback_(options.byte_fallback),
      ignore_merges_(options.ignore_merges),
      byte_level_(options.byte_level),
      continuing_prefix_(options.continuing_prefix),
      end_suffix_(options.end_suffix) {
  const Vocabulary& tokens = this->vocabulary();
  merges_.reserve(options.merges.size());
  for (std::size_t i = 0; i < options.merges.size(); ++i) {
    const std::int32_t id = merged_token(tokens, options.merges[i], i, continuing_prefix_.size());
    merges_.put(tokens.find(options.merges[i].first), tokens.find(options.merges[i].second),
                static_cast<std::int32_t>(i), id);
  }
  if (!options.unknown.empty() && (unknown_ = tokens.find(options.unknown)) < 0)
    throw InvalidArgument("the unknown token '{}' is not in the vocabulary", options.unknown);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string letter;
    if (byte_level_) append_byte_letters(std::string(1, static_cast<char>(byte)), letter);
    byte_ids_[byte] = tokens.find(byte_level_ ? letter : fmt::format("<0x{:02X}>", byte));
  }
  for (std::int64_t id = 0; byte_level_ && ignore_merges_ && id < tokens.size(); ++id) {
    std::string bytes;
    if (const std::string* const token = tokens.token(id); token != nullptr && append_spelled_bytes(*token, bytes))
      words_.emplace(std::move(bytes), static_cast<std::int32_t>(id));
  }
}

std::int32_t BytePairModel::whole(std::string_view word) const {
  if (!byte_level_) return vocabulary().find(word);
  const auto found = words_.find(std::string(word));
  return found == words_.end() ? -1 : found->second;
}

void BytePairModel::encode(std::string_view word, ModelScratch& scratch, std::vector<std::int64_t>& ids) const {
  if (const std::span<const std::int32_t> known = scratch.cache.find(word); !known.empty())
    return void(ids.insert(ids.end(), known.begin(), known.end()));
  const std::size_t before = ids.size();
  const std::int32_t id = ignore_merges_ ? whole(word) : -1;
  if (id >= 0) {
    ids.push_back(id);
  } else {
    split(word, scratch.symbols);
    if (scratch.symbols.size() <= kFewSymbols)
      merge_few(scratch.symbols, scratch.chances);
    else
      merge_many(scratch.symbols, scratch.chances);
    for (const WordSymbol& symbol : scratch.symbols)
      if (symbol.id >= 0) ids.push_back(symbol.id);
  }
  scratch.cache.put(word, std::span(ids).subspan(before));
}

void BytePairModel::split(std::string_view word, std::vector<WordSymbol>& symbols) const {
  symbols.clear();
  const bool is_plain = byte_level_ && !byte_fallback_ && continuing_prefix_.empty() && end_suffix_.empty();
  if (!is_plain) return split_characters(word, symbols);
  bool unknown_is_pending = false;
  for (const char byte : word) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id < 0) {
      if (unknown_is_pending && !fuse_unknown_) put_unknown(symbols, unknown_is_pending);
      unknown_is_pending = unknown_ >= 0;
      continue;
    }
    put_unknown(symbols, unknown_is_pending);
    symbols.push_back({.id = id});
  }
  put_unknown(symbols, unknown_is_pending);
}

void BytePairModel::put_unknown(std::vector<WordSymbol>& symbols, bool& is_pending) const {
  if (is_pending) symbols.push_back({.id = unknown_});
  is_pending = false;
}

// As in `tokenizers`, an unknown token waits for the next known character, also if bytes come between.
void BytePairModel::split_characters(std::string_view word, std::vector<WordSymbol>& symbols) const {
  std::string letters, text;
  if (byte_level_) {
    append_byte_letters(word, letters);
    word = letters;
  }
  bool unknown_is_pending = false;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t begin = at;
    next_character(word, at);
    text.assign(begin == 0 ? "" : continuing_prefix_).append(word.substr(begin, at - begin));
    if (at == word.size()) text += end_suffix_;
    if (const std::int32_t id = vocabulary().find(text); id >= 0) {
      put_unknown(symbols, unknown_is_pending);
      symbols.push_back({.id = id});
    } else if (!byte_fallback_ || !put_bytes(text, symbols)) {
      if (unknown_is_pending && !fuse_unknown_) put_unknown(symbols, unknown_is_pending);
      unknown_is_pending = unknown_ >= 0;
    }
  }
  put_unknown(symbols, unknown_is_pending);
}

bool BytePairModel::put_bytes(std::string_view text, std::vector<WordSymbol>& symbols) const {
  const auto id_of = [&](char byte) {
    return byte_level_ ? vocabulary().find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)))
                       : byte_ids_[static_cast<unsigned char>(byte)];
  };
  if (!std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; })) return false;
  for (const char byte : text) symbols.push_back({.id = id_of(byte)});
  return true;
}

void BytePairModel::merge_few(std::vector<WordSymbol>& symbols, std::vector<MergeChance>& chances) const {
  const auto chance = [&](std::size_t at) {
    const MergeTable::Merge* const merge = merges_.find(symbols[at].id, symbols[at + 1].id);
    return merge == nullptr ? MergeChance{.order = kNever} : MergeChance{.order = merge->order, .id = merge->id};
  };
  chances.clear();
  for (std::size_t at = 0; at + 1 < symbols.size(); ++at) chances.push_back(chance(at));
  while (!chances.empty()) {
    const auto next = std::min_element(chances.begin(), chances.end(),
                                       [](const MergeChance& a, const MergeChance& b) { return a.order < b.order; });
    if (next->order == kNever) return;
    const auto at = static_cast<std::size_t>(next - chances.begin());
    symbols[at].id = next->id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    chances.erase(next);
    if (at < chances.size()) chances[at] = chance(at);
    if (at > 0) chances[at - 1] = chance(at - 1);
  }
}

// A merged symbol's right half has the id -1 and stands in no list. A chance whose pair has changed since is passed
// over.
void BytePairModel::merge_many(std::vector<WordSymbol>& symbols, std::vector<MergeChance>& chances) const {
  const auto symbol = [&](std::int32_t at) -> WordSymbol& { return symbols[static_cast<std::size_t>(at)]; };
  const auto merge_at = [&](std::int32_t at) {
    return symbol(at).after < 0 ? nullptr : merges_.find(symbol(at).id, symbol(symbol(at).after).id);
  };
  const auto push = [&](std::int32_t at) {
    const MergeTable::Merge* const merge = at < 0 ? nullptr : merge_at(at);
    if (merge == nullptr) return;
    chances.push_back({merge->order, at, merge->id});
    std::push_heap(chances.begin(), chances.end(), comes_later);
  };
  const auto count = static_cast<std::int32_t>(symbols.size());
  for (std::int32_t at = 0; at < count; ++at) {
    symbol(at).before = at - 1;
    symbol(at).after = at + 1 < count ? at + 1 : -1;
  }
  chances.clear();
  for (std::int32_t at = 0; at + 1 < count; ++at) push(at);
  while (!chances.empty()) {
    std::pop_heap(chances.begin(), chances.end(), comes_later);
    const MergeChance next = chances.back();
    chances.pop_back();
    if (symbol(next.at).id < 0) continue;
    const MergeTable::Merge* const merge = merge_at(next.at);
    if (merge == nullptr || merge->id != next.id) continue;
    const std::int32_t right = symbol(next.at).after, after = symbol(right).after;
    symbol(next.at).id = next.id;
    symbol(next.at).after = after;
    if (after >= 0) symbol(after).before = next.at;
    symbol(right).id = -1;
    push(symbol(next.at).before);
    push(next.at);
  }
}

}  // namespace lockstep::data
