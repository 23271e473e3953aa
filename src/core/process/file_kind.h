// Recognises files that a reader cannot use because of common mistakes in downloading, by their first bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lockstep {

// " It is a Git LFS pointer, ...": a sentence that says what to do, beginning with a space; "" for any other content.
std::string mistaken_download(std::span<const std::byte> begin);

}  // namespace lockstep
