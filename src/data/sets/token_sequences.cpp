// Windows of token ids in memory.
#include <algorithm>
#include <limits>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/data/token_files.h"
#include "lockstep/data/tokenizer.h"
#include "src/data/formats/utf8.h"
#include "src/data/sets/token_windows.h"

namespace lockstep::data {

namespace {

std::shared_ptr<const std::vector<std::int32_t>> checked_ids(std::span<const std::int64_t> ids,
                                                             std::int64_t vocabulary_size) {
  const std::int64_t limit =
      vocabulary_size > 0 ? vocabulary_size : std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  auto checked = std::make_shared<std::vector<std::int32_t>>();
  checked->reserve(ids.size());
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= limit)
      throw InvalidArgument("TokenSequences: token {} is {}; expected 0 to {}", checked->size(), id, limit - 1);
    checked->push_back(static_cast<std::int32_t>(id));
  }
  return checked;
}

}  // namespace

TokenSequences::TokenSequences(std::span<const std::int64_t> ids, const TokenWindowOptions& options)
    : options_(options) {
  options_.stride = checked_stride("TokenSequences", options.length, options.stride, options.vocabulary_size);
  ids_ = checked_ids(ids, options.vocabulary_size);
  if (tokens() <= options.length)
    throw InvalidArgument(
        "TokenSequences: got {} tokens, too few for a window of {} and its next token: choose a smaller length",
        tokens(), options.length);
}

std::int64_t TokenSequences::size() const { return windows_of(tokens(), options_.length, options_.stride); }
std::vector<TensorSpec> TokenSequences::element_spec() const { return window_spec(options_.length); }

void TokenSequences::read(std::int64_t index, std::int64_t, const Row& row) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("TokenSequences: sample {} does not exist; the set has {}", index, size());
  const auto from = ids_->begin() + index * options_.stride;
  std::copy_n(from, options_.length, row.span<std::int64_t>(0).begin());
  std::copy_n(from + 1, options_.length, row.span<std::int64_t>(1).begin());
}

TokenSequences pack_sequences(std::span<const std::vector<std::int64_t>> documents, const PackOptions& options) {
  if (options.separator < 0)
    throw InvalidArgument("pack_sequences: separator is {}: give the id of the token that ends a document",
                          options.separator);
  std::size_t count = documents.size();
  for (const std::vector<std::int64_t>& document : documents) count += document.size();
  std::vector<std::int64_t> ids;
  ids.reserve(count);
  for (const std::vector<std::int64_t>& document : documents) {
    ids.insert(ids.end(), document.begin(), document.end());
    ids.push_back(options.separator);
  }
  return TokenSequences(ids, {.length = options.length, .vocabulary_size = options.vocabulary_size});
}

TokenSequences tokenize_file(const std::string& path, const Tokenizer& tokenizer, const TokenWindowOptions& options,
                             std::uint64_t max_bytes) {
  const std::vector<std::uint8_t> bytes = read_file(path, max_bytes);
  const std::string_view text = without_mark({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  check_utf8(text, path);
  const std::vector<std::int64_t> ids = tokenizer.encode(text, {.add_special_tokens = false});
  TokenWindowOptions checked = options;
  if (checked.vocabulary_size == 0) checked.vocabulary_size = tokenizer.vocabulary_size();
  if (options.length >= 1 && static_cast<std::int64_t>(ids.size()) <= options.length)
    throw FileError("{}: has {} tokens, too few for a window of {} and its next token: choose a smaller length", path,
                    ids.size(), options.length);
  return TokenSequences(ids, checked);
}

}  // namespace lockstep::data
