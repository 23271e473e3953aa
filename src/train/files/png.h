// PNG images (w3.org/TR/png), compressed by zlib.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::train::events {

struct Pixels {
  std::int64_t height = 0, width = 0, channels = 0;  // 1: grey, 3: RGB, 4: RGBA
  std::span<const std::uint8_t> bytes;               // (height, width, channels)
};

// The bytes of a PNG file, 8 bits a channel. Throws InvalidArgument for an image without pixels, or of more than 1 GiB.
std::string png_of(const Pixels& pixels);

}  // namespace lockstep::train::events
