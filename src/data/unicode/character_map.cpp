#include "src/data/unicode/character_map.h"

#include <cstring>

#include "lockstep/core/error.h"
#include "src/data/unicode/unicode_text.h"

namespace lockstep::data {

namespace {

constexpr std::uint32_t kIsValue = std::uint32_t{1} << 31;
constexpr std::size_t kLongestCluster = 5;

bool is_reached_by(std::uint32_t unit, std::size_t byte) { return (unit & (kIsValue | 0xffU)) == byte; }
bool ends_key(std::uint32_t unit) { return (unit >> 8 & 1U) != 0; }
std::size_t base_of(std::uint32_t unit, std::size_t place) { return place ^ ((unit >> 10) << ((unit >> 9 & 1U) * 8)); }

}  // namespace

CharacterMap::CharacterMap(std::string_view file) {
  std::uint32_t bytes = 0;
  if (file.size() >= sizeof bytes) std::memcpy(&bytes, file.data(), sizeof bytes);
  if (bytes == 0 || bytes % sizeof(std::uint32_t) != 0 || bytes > file.size() - sizeof bytes)
    throw InvalidArgument("a map of characters of {} bytes is damaged: its array has {}", file.size(), bytes);
  units_.resize(bytes / sizeof(std::uint32_t));
  std::memcpy(units_.data(), file.data() + sizeof bytes, bytes);
  texts_ = file.substr(sizeof bytes + bytes);
  check();
}

// Goes to each node once.
void CharacterMap::check() const {
  const auto refuse = [](const char* why) { throw InvalidArgument("a map of characters is damaged: {}", why); };
  for (std::size_t at = 0; at < texts_.size();)
    if (!next_character(texts_, at)) refuse("its texts are not UTF-8");
  std::vector<bool> is_known(units_.size());
  std::vector<std::size_t> bases = {base_of(units_[0], 0)};
  while (!bases.empty()) {
    const std::size_t base = bases.back();
    bases.pop_back();
    for (std::size_t byte = 1; byte < 256; ++byte) {
      const std::size_t place = base ^ byte;
      if (place >= units_.size() || !is_reached_by(units_[place], byte)) continue;
      if (is_known[place]) continue;  // keys with equal ends share nodes
      is_known[place] = true;
      bases.push_back(base_of(units_[place], place));
      if (!ends_key(units_[place])) continue;
      const std::size_t at = bases.back() < units_.size() ? units_[bases.back()] & ~kIsValue : texts_.size();
      if (at >= texts_.size() || (static_cast<unsigned char>(texts_[at]) & 0xc0U) == 0x80) refuse("a key has no text");
    }
  }
}

std::optional<std::string_view> CharacterMap::find(std::string_view text) const {
  std::size_t base = base_of(units_[0], 0);
  for (const char c : text) {
    const std::size_t byte = static_cast<unsigned char>(c), place = base ^ byte;
    if (byte == 0 || place >= units_.size() || !is_reached_by(units_[place], byte)) return std::nullopt;
    base = base_of(units_[place], place);
    if (!ends_key(units_[place])) continue;
    const std::string_view found = std::string_view(texts_).substr(units_[base] & ~kIsValue);
    return found.substr(0, found.find('\0'));
  }
  return std::nullopt;
}

void CharacterMap::apply(std::string_view text, std::string& result) const {
  result.clear();
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = grapheme_end(text, begin);
    const std::string_view cluster = text.substr(begin, end - begin);
    if (cluster.size() <= kLongestCluster)
      if (const auto found = find(cluster)) {
        result += *found;
        continue;
      }
    visit_text(cluster, [&](char32_t, std::string_view bytes) { result += find(bytes).value_or(bytes); });
  }
}

}  // namespace lockstep::data
