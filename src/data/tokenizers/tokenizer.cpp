#include "lockstep/data/tokenizer.h"

#include <filesystem>

#include "lockstep/core/error.h"
#include "src/data/formats/utf8.h"
#include "src/data/tokenizers/tokenizer_file.h"

namespace lockstep::data {

namespace {

std::string tokenizer_file_of(const std::string& path) {
  std::error_code failure;
  if (!std::filesystem::is_directory(path, failure)) return path;
  for (const char* const name : {"tokenizer.json", "tokenizer.model", "spiece.model"})
    if (std::filesystem::exists(path + "/" + name, failure)) return path + "/" + name;
  throw FileError("{}: the folder has no tokenizer.json, tokenizer.model or spiece.model", path);
}

std::shared_ptr<const TokenizerFile> open_tokenizer(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".json") return open_json_tokenizer(path);
  if (extension == ".model") return open_sentencepiece(path);
  throw FileError("{}: the name ends in '{}'; a tokenizer is a .json file of Hugging Face or a .model of SentencePiece",
                  path, extension);
}

void check_is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();)
    if (static_cast<unsigned char>(text[at]) < 0x80)
      ++at;
    else if (!next_character(text, at))
      throw InvalidArgument("Tokenizer: byte {} of the text, 0x{:02x}, is not UTF-8: convert the text to UTF-8", at,
                            static_cast<unsigned char>(text[at]));
}

}  // namespace

Tokenizer::Tokenizer(const std::string& path) : file_(open_tokenizer(tokenizer_file_of(path))) {}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<std::int64_t> ids;
  ids.reserve(text.size() / 3 + 8);
  encode_to(text, ids, options);
  return ids;
}

void Tokenizer::encode_to(std::string_view text, std::vector<std::int64_t>& ids, const EncodeOptions& options) const {
  check_is_utf8(text);
  file_->encode(text, options, ids);
}

PairEncoding Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                    const EncodeOptions& options) const {
  check_is_utf8(first);
  check_is_utf8(second);
  return file_->encode_pair(first, second, options);
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, const DecodeOptions& options) const {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (!file_->has_id(ids[i]))
      throw InvalidArgument(
          "Tokenizer: decode: id {} at place {} is not in the vocabulary of {}, which has ids 0 to {}", ids[i], i,
          path(), vocabulary_size() - 1);
  return file_->decode(ids, options);
}

std::int64_t Tokenizer::vocabulary_size() const { return file_->vocabulary_size(); }
std::optional<std::int64_t> Tokenizer::id_of(std::string_view token) const { return file_->id_of(token); }

std::string Tokenizer::token_of(std::int64_t id) const {
  if (std::optional<std::string> token = file_->token_of(id)) return *std::move(token);
  throw InvalidArgument("Tokenizer: id {} is not in the vocabulary of {}, which has ids 0 to {}", id, path(),
                        vocabulary_size() - 1);
}

std::vector<SpecialToken> Tokenizer::special_tokens() const { return file_->special_tokens(); }
const std::string& Tokenizer::path() const { return file_->path(); }

}  // namespace lockstep::data
