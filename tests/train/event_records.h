// The contents of an event file, read without the library's code.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace lockstep::testing {

inline std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string hex_of(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) (text += kDigits[byte / 16]) += kDigits[byte % 16];
  return text;
}

// Returns the complete records, in hex.
inline std::vector<std::string> records_of(const std::string& path) {
  const std::string bytes = bytes_of_file(path);
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = bytes.size();
    if (bytes.size() - at >= 16) std::memcpy(&length, bytes.data() + at, 8);
    if (bytes.size() - at < 16 || length > bytes.size() - at - 16) {
      ADD_FAILURE() << path << " ends within a record that begins at byte " << at;
      break;
    }
    records.push_back(hex_of(bytes.substr(at, length + 16)));
    at += length + 16;
  }
  return records;
}

}  // namespace lockstep::testing
