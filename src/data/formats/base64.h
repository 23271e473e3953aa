// Base64 (RFC 4648, section 4): bytes as letters, digits, + and /, four for three bytes, with = at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

// nullopt for a text that is not base64 with its padding.
inline std::optional<std::string> base64_decoded(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = i + padding >= text.size() ? 0 : kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    for (int shift = 16; i % 4 == 3 && shift >= 0; shift -= 8)
      bytes.push_back(static_cast<char>((bits >> shift) & 255U));
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace lockstep::data
