// The unigram language model (Kudo, 2018, Subword Regularization: Improving Neural Network Translation Models with
// Multiple Subword Candidates, section 3.2): of all ways to cut a word into tokens, the one whose scores, logarithms of
// probabilities, have the largest sum. The sums are doubles, as in `tokenizers`.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/data/token_models/byte_trie.h"
#include "src/data/token_models/token_model.h"

namespace lockstep::data {

struct UnigramOptions {
  std::vector<double> scores;  // by ids
  // The token for characters that no token has; neighbours become one. Without it, they are an error.
  std::optional<std::int64_t> unknown;
  bool byte_fallback = false;  // their bytes instead, if the vocabulary has <0x00> to <0xFF>
};

class UnigramModel : public TokenModel {
 public:
  // Throws InvalidArgument if the unknown token's id is not in the vocabulary.
  UnigramModel(Vocabulary vocabulary, const UnigramOptions& options);
  // Throws InvalidArgument for a character that no token has, if there is no unknown token.
  void encode(std::string_view word, ModelScratch& scratch, std::vector<std::int64_t>& ids) const override;

 private:
  void find_best_path(std::string_view word, std::vector<PathNode>& path) const;
  void put_unknown(std::string_view text, std::vector<std::int64_t>& ids) const;

  ByteTrie tokens_;
  std::vector<double> scores_;
  double unknown_score_;
  std::int32_t unknown_;        // -1: there is none
  std::int32_t byte_ids_[256];  // -1: no bytes
};

}  // namespace lockstep::data
