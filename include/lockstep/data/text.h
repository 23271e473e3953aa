// Plain text for models of characters: a vocabulary, and windows of a text with the character that follows each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// Numbers for characters (Unicode code points): 0, 1, 2, ... in the order of their code points.
class CharacterVocabulary {
 public:
  // Of the distinct characters of `text`, UTF-8: of a training text, or of what characters() gave. Throws
  // InvalidArgument for text that is no UTF-8, or empty.
  explicit CharacterVocabulary(std::string_view text);

  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
  std::string characters() const;  // each once, in order, UTF-8
  // Throw InvalidArgument: a character (with its byte) or a number that the vocabulary does not have, text that is no
  // UTF-8.
  std::vector<std::int64_t> encode(std::string_view text) const;
  std::string decode(std::span<const std::int64_t> numbers) const;

 private:
  std::vector<char32_t> characters_;  // ascending
};

struct CharacterDatasetOptions {
  std::int64_t length = 128;  // T, characters of a window
  std::int64_t stride = 0;    // from one window's begin to the next one's; 0: length, so that no two windows overlap
  std::optional<CharacterVocabulary> vocabulary = {};  // another text's; empty: this text's own
  std::uint64_t max_bytes = kMaxFileBytes;
};

// Windows of a text: samples are {(T) int64, (T) int64}, characters i * stride ... + T - 1 and, as targets, those one
// further. A last window that is not whole is left out. take() and skip() part a text for validation. Copies share the
// text.
class CharacterDataset : public FixedShapeDataset {
 public:
  // A file, plain or gzip. Throws FileError: as read_file(); not UTF-8, with byte and line; shorter than T + 1
  // characters; a character that the vocabulary given does not have, with its byte. InvalidArgument for a length below
  // 1 or a negative stride.
  explicit CharacterDataset(const std::string& path, const CharacterDatasetOptions& options = {});

  const CharacterVocabulary& vocabulary() const { return vocabulary_; }
  std::int64_t characters() const { return static_cast<std::int64_t>(numbers_->size()); }  // of the whole text
  std::int64_t size() const override;
  std::vector<TensorSpec> element_spec() const override;
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  CharacterDataset(const std::string& path, const CharacterDatasetOptions& options, const std::string& text);

  std::int64_t length_, stride_;
  CharacterVocabulary vocabulary_;
  std::shared_ptr<const std::vector<std::int32_t>> numbers_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
