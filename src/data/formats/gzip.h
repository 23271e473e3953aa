#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

// Does a file begin as gzip does?
bool is_gzip(std::span<const std::uint8_t> bytes);

// What a gzip file of one or more members holds, whose checksums are compared. Memory grows with what is unpacked, up
// to max_bytes. Throws FileError with `path`: damaged, truncated, or more than max_bytes.
std::vector<std::uint8_t> gunzip(std::span<const std::uint8_t> packed, const std::string& path,
                                 std::uint64_t max_bytes);

}  // namespace lockstep::data
