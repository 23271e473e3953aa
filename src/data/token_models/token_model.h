// From a word to token ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/data/token_models/vocabulary.h"
#include "src/data/token_models/word_cache.h"

namespace lockstep::data {

// A symbol of a word while pairs are merged.
struct WordSymbol {
  std::int32_t id = 0;
  std::int32_t before = -1, after = -1;  // of a list; -1: none
};

// A pair that may be merged: the one with the lowest order is next, from left to right.
struct MergeChance {
  std::int32_t order = 0, at = 0, id = 0;
};

// A place within a word, after a token: the end of the path of tokens with the best sum of scores.
struct PathNode {
  double sum = 0;
  std::size_t begin = 0;  // of the token
  std::int32_t id = -1;   // of the token; -1: no path ends here
  std::size_t next = 0;   // where the next token of the whole word's path ends
};

// Memory of one thread.
struct ModelScratch {
  WordCache cache;  // of one model
  std::vector<WordSymbol> symbols;
  std::vector<MergeChance> chances;
  std::vector<PathNode> path;
};

class TokenModel {
 public:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~TokenModel() = default;
  // Appends the ids of a word of UTF-8 that is not empty.
  virtual void encode(std::string_view word, ModelScratch& scratch, std::vector<std::int64_t>& ids) const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

}  // namespace lockstep::data
