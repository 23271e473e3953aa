// Pixels of an encoded image.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

// Decodes the bytes of a file as read_image() does; `path` is for messages.
Tensor decode_image(std::span<const std::uint8_t> bytes, const std::string& path, std::int64_t max_pixels);

}  // namespace lockstep::data
