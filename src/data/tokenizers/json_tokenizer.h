// tokenizer.json of Hugging Face's `tokenizers`, after reading: the steps from a text to ids and back.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/data/token_models/token_model.h"
#include "src/data/tokenizers/added_tokens.h"
#include "src/data/tokenizers/cut_text.h"
#include "src/data/tokenizers/decoders.h"
#include "src/data/tokenizers/normalizers.h"
#include "src/data/tokenizers/post_processor.h"
#include "src/data/tokenizers/pre_tokenizers.h"
#include "src/data/tokenizers/tokenizer_file.h"

namespace lockstep::data {

struct TokenizerSteps {
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  std::unique_ptr<TokenModel> model;
  std::vector<AddedToken> added;
  PostProcessor post_processor;
  std::optional<TokenDecoders> decoders;  // empty: tokens are joined with spaces
};

class JsonTokenizer : public TokenizerFile {
 public:
  // Throws InvalidArgument for added tokens that contradict the model's vocabulary.
  JsonTokenizer(const std::string& path, TokenizerSteps steps);

  void encode(std::string_view text, const EncodeOptions& options, std::vector<std::int64_t>& ids) const override;
  PairEncoding encode_pair(std::string_view first, std::string_view second,
                           const EncodeOptions& options) const override;
  std::string decode(std::span<const std::int64_t> ids, const DecodeOptions& options) const override;
  std::int64_t vocabulary_size() const override { return size_; }
  bool has_id(std::int64_t id) const override;
  std::optional<std::int64_t> id_of(std::string_view token) const override;
  std::optional<std::string> token_of(std::int64_t id) const override;
  std::vector<SpecialToken> special_tokens() const override;

 private:
  // The memory of one call. Calls give it back, and later calls use it again, with its cache of words.
  struct Scratch {
    PatternScratch patterns;
    NormalizerScratch normalizers;
    CutText cut;
    ModelScratch model;
  };
  class Borrowed;

  void check(const EncodeOptions& options) const;
  std::string normalized_content(const std::string& content) const;
  void put_text(std::string_view text, Scratch& scratch, std::vector<std::int64_t>& ids) const;
  void put_section(std::string_view text, bool begins_input, Scratch& scratch, std::vector<std::int64_t>& ids) const;

  TokenizerSteps steps_;
  AddedTokens added_;
  std::int64_t size_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // guarded by mutex_
};

}  // namespace lockstep::data
