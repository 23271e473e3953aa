// The rules of SentencePiece's normalizer, which its models and tokenizer.json (Precompiled) have in compiled form:
// from characters and short sequences of them to texts, such as NFKC with a few changes.
//
// A file has the number of bytes of a double array (Aoe, 1989, An Efficient Digital Search Algorithm by Using a
// Double-Array Structure) as 4 bytes, the array, and texts that a zero byte ends. A key's value is the place of its
// text. All numbers are little-endian; a unit of the array has
//   bits 0 to 7   the byte that leads to this node        bit 8    a key ends here: its value is the unit at the base
//   bits 10 to 30 the base, relative to the node's place  bit 9    they count 256 each
//   bit 31        this unit is a value, in bits 0 to 30
// The node that byte c leads to is at the base of the present one, xor c.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

class CharacterMap {
 public:
  // Throws InvalidArgument for a damaged map.
  explicit CharacterMap(std::string_view file);

  // Replaces `result`. As in `tokenizers`, a grapheme cluster of at most 5 bytes is looked for as a whole, then the
  // characters of those that have no rule; where several rules begin a text, the shortest counts, for all of it.
  void apply(std::string_view text, std::string& result) const;

 private:
  std::optional<std::string_view> find(std::string_view text) const;  // nullopt: no rule begins it
  void check() const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace lockstep::data
