// Plain text for character models: a vocabulary, and windows of a text with each character's successor as target.
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

// Maps characters (Unicode code points) to numbers 0, 1, 2, ... in the order of their code points.
class CharacterVocabulary {
 public:
  // Takes the distinct characters of a UTF-8 text: a training text, or the result of characters(). Throws
  // InvalidArgument for text that is empty or not UTF-8.
  explicit CharacterVocabulary(std::string_view text);

  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
  std::string characters() const;  // each character once, in order, as UTF-8
  // Throw InvalidArgument for a character (with its byte) or a number that is not in the vocabulary, and for text that
  // is not UTF-8.
  std::vector<std::int64_t> encode(std::string_view text) const;
  std::string decode(std::span<const std::int64_t> numbers) const;

 private:
  std::vector<char32_t> characters_;  // ascending
};

struct CharacterDatasetOptions {
  std::int64_t length = 128;  // T, characters per window
  // Characters from the start of one window to the next; 0: length, so that windows do not overlap.
  std::int64_t stride = 0;
  std::optional<CharacterVocabulary> vocabulary = {};  // a vocabulary of another text; empty: this text's own
  std::uint64_t max_bytes = kMaxFileBytes;
};

// Windows of a text. Sample i is {(T) int64, (T) int64}: the characters from i * stride to i * stride + T - 1 and, as
// targets, those from i * stride + 1 to i * stride + T. An incomplete last window is skipped. Use take() and skip() to
// split a text for validation. Copies share the text.
class CharacterDataset : public FixedShapeDataset {
 public:
  // Reads a plain or gzip file. Throws FileError where read_file() does, for text that is not UTF-8 (with byte and
  // line), for fewer than T + 1 characters, and for a character outside the given vocabulary (with its byte). Throws
  // InvalidArgument for a length below 1 or a negative stride.
  explicit CharacterDataset(const std::string& path, const CharacterDatasetOptions& options = {});

  const CharacterVocabulary& vocabulary() const { return vocabulary_; }
  std::int64_t characters() const { return static_cast<std::int64_t>(numbers_->size()); }  // in the entire text
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
