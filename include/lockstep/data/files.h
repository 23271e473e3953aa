// What the readers of files have in common: plain or gzip (RFC 1952), which the first two bytes tell, whatever the
// name.
//
// All throw FileError with the path: a file that is missing, no regular file, damaged or truncated gzip data, or text
// that is no UTF-8, with the byte or line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::data {

// The largest file, and content of a gzip file, that is read unless a reader is told another: what a small file may
// unpack to has to end somewhere.
inline constexpr std::uint64_t kMaxFileBytes = std::size_t{2} << 30;

// The whole content, unpacked.
std::vector<std::uint8_t> read_file(const std::string& path, std::uint64_t max_bytes = kMaxFileBytes);

// The lines of a UTF-8 text, without their ends (\n or \r\n): names of classes, words of a vocabulary.
std::vector<std::string> read_lines(const std::string& path, std::uint64_t max_bytes = kMaxFileBytes);

}  // namespace lockstep::data
#pragma GCC visibility pop
