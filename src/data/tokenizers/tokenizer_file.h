// The interface of each kind of tokenizer file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

// The members mean the same as Tokenizer's. Texts are UTF-8, and ids are in the vocabulary: Tokenizer has checked both.
class TokenizerFile {
 public:
  explicit TokenizerFile(std::string path) : path_(std::move(path)) {}
  virtual ~TokenizerFile() = default;
  const std::string& path() const { return path_; }

  virtual void encode(std::string_view text, const EncodeOptions& options, std::vector<std::int64_t>& ids) const = 0;
  virtual PairEncoding encode_pair(std::string_view first, std::string_view second,
                                   const EncodeOptions& options) const = 0;
  virtual std::string decode(std::span<const std::int64_t> ids, const DecodeOptions& options) const = 0;
  virtual std::int64_t vocabulary_size() const = 0;
  virtual bool has_id(std::int64_t id) const = 0;
  virtual std::optional<std::int64_t> id_of(std::string_view token) const = 0;
  virtual std::optional<std::string> token_of(std::int64_t id) const = 0;
  virtual std::vector<SpecialToken> special_tokens() const = 0;

 private:
  std::string path_;
};

// Throw FileError, and Error if this build does not have the library.
std::shared_ptr<const TokenizerFile> open_json_tokenizer(const std::string& path);
std::shared_ptr<const TokenizerFile> open_sentencepiece(const std::string& path);

}  // namespace lockstep::data
