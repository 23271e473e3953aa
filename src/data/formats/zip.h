// Reads members of a zip archive, such as NumPy's .npz.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

// Returns the member `name`, unpacked, and verifies its checksum. Reads stored and deflated members of archives below 4
// GiB (APPNOTE.TXT of PKWARE, sections 4.3 and 4.4). Throws FileError with `path` for bytes that are no such archive,
// for a member that is missing (with those that are there), encrypted, damaged or larger than max_bytes.
std::vector<std::uint8_t> unzip(std::span<const std::uint8_t> archive, const std::string& name, const std::string& path,
                                std::uint64_t max_bytes);

}  // namespace lockstep::data
