// In place of decode_image.cpp, in a build without libjpeg-turbo or libpng.
#include "lockstep/core/error.h"
#include "src/data/image_files/decode_image.h"

namespace lockstep::data {

Tensor decode_image(std::span<const std::uint8_t>, const std::string& path, std::int64_t) {
  throw InvalidArgument(
      "read_image: {}: this build of Lockstep cannot decode images: install libturbojpeg0-dev and libpng-dev, and "
      "configure with -Dimages=enabled",
      path);
}

}  // namespace lockstep::data
