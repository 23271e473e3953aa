// What a file is that a reader cannot take: usual mistakes of downloads, by their first bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lockstep {

// " It is a Git LFS pointer, ...": a sentence that says what to do, with a space in front; "" for anything else.
std::string mistaken_download(std::span<const std::byte> begin);

}  // namespace lockstep
