// Pixels of an encoded picture.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

// What read_image() returns for a file with these bytes; `path` is for messages.
Tensor decode_image(std::span<const std::uint8_t> bytes, const std::string& path, std::int64_t max_pixels);

}  // namespace lockstep::data
