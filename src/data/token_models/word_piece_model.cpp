#include "src/data/token_models/word_piece_model.h"

#include <algorithm>
#include <span>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80; }

}  // namespace

WordPieceModel::WordPieceModel(Vocabulary vocabulary, const WordPieceOptions& options)
    : TokenModel(std::move(vocabulary)),
      longest_word_(options.longest_word),
      unknown_(this->vocabulary().find(options.unknown)) {
  if (unknown_ < 0) throw InvalidArgument("the unknown token '{}' is not in the vocabulary", options.unknown);
  for (std::int64_t id = 0; id < this->vocabulary().size(); ++id)
    if (const std::string* const token = this->vocabulary().token(id);
        token != nullptr && token->starts_with(options.continuing_prefix))
      continuing_.emplace(std::string_view(*token).substr(options.continuing_prefix.size()),
                          static_cast<std::int32_t>(id));
}

void WordPieceModel::encode(std::string_view word, ModelScratch& scratch, std::vector<std::int64_t>& ids) const {
  if (const std::span<const std::int32_t> known = scratch.cache.find(word); !known.empty())
    return void(ids.insert(ids.end(), known.begin(), known.end()));
  const std::size_t before = ids.size();
  const std::int64_t characters =
      std::count_if(word.begin(), word.end(), [](char byte) { return !continues_character(byte); });
  if (characters > longest_word_ || !put_pieces(word, ids)) {
    ids.resize(before);
    ids.push_back(unknown_);
  }
  scratch.cache.put(word, std::span(ids).subspan(before));
}

bool WordPieceModel::put_pieces(std::string_view word, std::vector<std::int64_t>& ids) const {
  for (std::size_t begin = 0; begin < word.size();) {
    std::int32_t id = -1;
    std::size_t end = std::min(word.size(), begin + vocabulary().longest());
    for (; end > begin; --end) {
      if (end < word.size() && continues_character(word[end])) continue;
      const std::string_view piece = word.substr(begin, end - begin);
      if (begin == 0) {
        id = vocabulary().find(piece);
      } else if (const auto found = continuing_.find(piece); found != continuing_.end()) {
        id = found->second;
      }
      if (id >= 0) break;
    }
    if (id < 0) return false;
    ids.push_back(id);
    begin = end;
  }
  return true;
}

}  // namespace lockstep::data
