#include "src/core/memory/memory_policy.h"

#include <charconv>
#include <limits>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

// 0: not a size.
std::size_t parse_size(std::string_view text) {
  std::size_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc()) return 0;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (shift < 0 || value > std::numeric_limits<std::size_t>::max() >> shift) return 0;
  return value << shift;
}

}  // namespace

MemoryPolicy parse_memory_policy(const std::string& source, const std::string& text) {
  using Kind = MemoryPolicy::Kind;
  if (text == "grow") return {Kind::kGrow, 0};
  if (text == "all") return {Kind::kAll, 0};
  constexpr std::string_view kAllOf = "all:";
  const bool all = std::string_view(text).substr(0, kAllOf.size()) == kAllOf;
  if (const std::size_t bytes = parse_size(std::string_view(text).substr(all ? kAllOf.size() : 0)); bytes != 0)
    return {all ? Kind::kAll : Kind::kLimit, bytes};
  throw InvalidArgument(
      "{}: '{}' is not an amount of memory: expected grow, all, 8G (at most that), or all:8G (that, at once); K, M and "
      "G are powers "
      "of 1024",
      source, text);
}

}  // namespace lockstep
