#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

// Returns whether a file begins with the magic bytes of gzip.
bool is_gzip(std::span<const std::uint8_t> bytes);

// Unpacks a gzip file with one or more members and verifies their checksums. Memory grows with the unpacked size, up to
// max_bytes. Throws FileError with `path` for damaged or truncated data, and for more than max_bytes.
std::vector<std::uint8_t> gunzip(std::span<const std::uint8_t> packed, const std::string& path,
                                 std::uint64_t max_bytes);

}  // namespace lockstep::data
