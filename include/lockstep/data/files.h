// Common parts of the file readers. Files may be plain or gzip (RFC 1952); the first two bytes decide, not the name.
//
// All throw FileError with the path for a missing file, a file that is not a regular file, damaged or truncated gzip
// data, or text that is not UTF-8 (with the byte or line).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::data {

// The default limit of a file's size, and of a gzip file's unpacked size, in bytes. It stops a small file from
// unpacking without end.
inline constexpr std::uint64_t kMaxFileBytes = std::size_t{2} << 30;

// Returns the entire content, unpacked.
std::vector<std::uint8_t> read_file(const std::string& path, std::uint64_t max_bytes = kMaxFileBytes);

// Returns the lines of a UTF-8 text without their ends (\n or \r\n): names of classes, words of a vocabulary.
std::vector<std::string> read_lines(const std::string& path, std::uint64_t max_bytes = kMaxFileBytes);

}  // namespace lockstep::data
#pragma GCC visibility pop
