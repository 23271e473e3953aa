// Byte-pair encoding (Sennrich, Haddow and Birch, 2016, Neural Machine Translation of Rare Words with Subword Units):
// of all neighbours in a word, the pair that comes first in the list of merges becomes one symbol, until no pair is in
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/data/token_models/merge_table.h"
#include "src/data/token_models/token_model.h"

namespace lockstep::data {

struct BytePairOptions {
  std::vector<std::pair<std::string, std::string>> merges;
  std::string unknown;            // the token for characters outside the vocabulary, which are left out if it is empty
  bool fuse_unknown = false;      // one such token for neighbours
  bool byte_fallback = false;     // their bytes instead, if the vocabulary has <0x00> to <0xFF>
  bool ignore_merges = false;     // a word that is a token is not split
  std::string continuing_prefix;  // before each character of a word but the first
  std::string end_suffix;         // after the last
  // Words are bytes, and the vocabulary spells each byte as a letter (byte_letters.h).
  bool byte_level = false;
};

class BytePairModel : public TokenModel {
 public:
  // Throws InvalidArgument for a merge of, or to, a token that is not in the vocabulary, and for an unknown token that
  // is not.
  BytePairModel(Vocabulary vocabulary, const BytePairOptions& options);
  void encode(std::string_view word, ModelScratch& scratch, std::vector<std::int64_t>& ids) const override;

 private:
  std::int32_t whole(std::string_view word) const;
  void split(std::string_view word, std::vector<WordSymbol>& symbols) const;
  void split_characters(std::string_view word, std::vector<WordSymbol>& symbols) const;
  void put_unknown(std::vector<WordSymbol>& symbols, bool& is_pending) const;
  bool put_bytes(std::string_view text, std::vector<WordSymbol>& symbols) const;
  void merge_few(std::vector<WordSymbol>& symbols, std::vector<MergeChance>& chances) const;
  void merge_many(std::vector<WordSymbol>& symbols, std::vector<MergeChance>& chances) const;

  bool fuse_unknown_, byte_fallback_, ignore_merges_, byte_level_;
  std::string continuing_prefix_, end_suffix_;
  std::int32_t unknown_ = -1;
  std::int32_t byte_ids_[256];  // byte level: of each byte; byte fallback: of <0x..>; -1: missing
  std::unordered_map<std::string, std::int32_t> words_;  // byte level with ignore_merges: ids by bytes
  MergeTable merges_;
};

}  // namespace lockstep::data
