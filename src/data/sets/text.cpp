#include "lockstep/data/text.h"

#include <algorithm>
#include <set>

#include "lockstep/core/error.h"
#include "src/data/formats/utf8.h"

namespace lockstep::data {

namespace {

// Throws InvalidArgument. A file's text was checked before, with its path.
template <typename Visit> void visit_characters(std::string_view text, Visit&& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const std::optional<char32_t> character = next_character(text, at);
    if (!character)
      throw InvalidArgument("CharacterVocabulary: byte {}, 0x{:02x}, is not UTF-8", begin,
                            static_cast<unsigned char>(text[begin]));
    visit(*character, begin);
  }
}

std::vector<char32_t> distinct_characters(std::string_view text) {
  std::set<char32_t> found;
  visit_characters(text, [&](char32_t character, std::size_t) { found.insert(character); });
  if (found.empty()) throw InvalidArgument("CharacterVocabulary: the text is empty");
  return {found.begin(), found.end()};
}

std::string checked_text(const std::string& path, std::uint64_t max_bytes) {
  const std::vector<std::uint8_t> bytes = read_file(path, max_bytes);
  const std::string_view text = without_mark({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (text.empty()) throw FileError("{}: is empty", path);
  check_utf8(text, path);
  return std::string(text);
}

std::vector<std::int64_t> numbers_in(const std::string& text, const CharacterVocabulary& vocabulary,
                                     const std::string& path) {
  try {
    return vocabulary.encode(text);
  } catch (const InvalidArgument& error) {
    throw FileError("{}: {}", path, error.what());
  }
}

}  // namespace

CharacterVocabulary::CharacterVocabulary(std::string_view text) : characters_(distinct_characters(text)) {}

std::string CharacterVocabulary::characters() const {
  std::string text;
  for (const char32_t character : characters_) append_character(text, character);
  return text;
}

std::vector<std::int64_t> CharacterVocabulary::encode(std::string_view text) const {
  std::vector<std::int64_t> numbers;
  numbers.reserve(text.size());
  visit_characters(text, [&](char32_t character, std::size_t at) {
    const auto place = std::lower_bound(characters_.begin(), characters_.end(), character);
    if (place == characters_.end() || *place != character)
      throw InvalidArgument(
          "CharacterVocabulary: byte {} is the character U+{:04X}, which is not in the vocabulary of {}", at,
          static_cast<std::uint32_t>(character), size());
    numbers.push_back(place - characters_.begin());
  });
  return numbers;
}

std::string CharacterVocabulary::decode(std::span<const std::int64_t> numbers) const {
  std::string text;
  for (const std::int64_t number : numbers) {
    if (number < 0 || number >= size())
      throw InvalidArgument("CharacterVocabulary: number {} is out of range 0 to {}", number, size() - 1);
    append_character(text, characters_[static_cast<std::size_t>(number)]);
  }
  return text;
}

CharacterDataset::CharacterDataset(const std::string& path, const CharacterDatasetOptions& options)
    : CharacterDataset(path, options, checked_text(path, options.max_bytes)) {}

CharacterDataset::CharacterDataset(const std::string& path, const CharacterDatasetOptions& options,
                                   const std::string& text)
    : length_(options.length),
      stride_(options.stride == 0 ? options.length : options.stride),
      vocabulary_(options.vocabulary ? *options.vocabulary : CharacterVocabulary(text)) {
  if (length_ < 1 || stride_ < 1)
    throw InvalidArgument("CharacterDataset: length {} and stride {} must be positive", options.length, options.stride);
  const std::vector<std::int64_t> numbers = numbers_in(text, vocabulary_, path);
  numbers_ = std::make_shared<const std::vector<std::int32_t>>(numbers.begin(), numbers.end());
  if (characters() <= length_)
    throw FileError("{}: has {} characters, too few for a window of {} and its next character: choose a smaller length",
                    path, characters(), length_);
}

std::int64_t CharacterDataset::size() const { return (characters() - 1 - length_) / stride_ + 1; }

std::vector<TensorSpec> CharacterDataset::element_spec() const {
  return {{{length_}, DType::kInt64}, {{length_}, DType::kInt64}};
}

void CharacterDataset::read(std::int64_t index, std::int64_t, const Row& row) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("CharacterDataset: sample {} does not exist; the set has {}", index, size());
  const auto from = numbers_->begin() + index * stride_;
  std::copy_n(from, length_, row.span<std::int64_t>(0).begin());
  std::copy_n(from + 1, length_, row.span<std::int64_t>(1).begin());
}

}  // namespace lockstep::data
