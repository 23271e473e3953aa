// WordPiece as BERT uses it (tokenization.py of google-research/bert): from left to right the longest token; if no
// token fits somewhere, the whole word is unknown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/token_models/token_model.h"

namespace lockstep::data {

struct WordPieceOptions {
  std::string unknown = "[UNK]";
  std::string continuing_prefix = "##";  // of tokens that continue a word
  std::int64_t longest_word = 100;       // in characters; longer words are unknown
};

class WordPieceModel : public TokenModel {
 public:
  // Throws InvalidArgument if the unknown token is not in the vocabulary.
  WordPieceModel(Vocabulary vocabulary, const WordPieceOptions& options);
  void encode(std::string_view word, ModelScratch& scratch, std::vector<std::int64_t>& ids) const override;

 private:
  bool put_pieces(std::string_view word, std::vector<std::int64_t>& ids) const;

  std::int64_t longest_word_;
  std::int32_t unknown_;
  std::unordered_map<std::string_view, std::int32_t> continuing_;  // without the prefix
};

}  // namespace lockstep::data
