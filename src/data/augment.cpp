#include "src/data/augment.h"

namespace lockstep::data {

Augmentation draw_augmentation(std::int64_t side, std::int64_t crop, Philox& random) {
  const auto places = static_cast<std::uint32_t>(side - crop + 1);
  Augmentation how{};
  how.top = static_cast<std::int32_t>(random.below(places));
  how.left = static_cast<std::int32_t>(random.below(places));
  how.mirrored = random.below(2) == 1 ? 1 : 0;
  how.brightness = random.uniform(-63, 63);
  how.contrast = random.uniform(0.2f, 1.8f);
  return how;
}

Augmentation centre_crop(std::int64_t side, std::int64_t crop) {
  const auto margin = static_cast<std::int32_t>((side - crop) / 2);
  return {margin, margin, 0, 0, 1};
}

}  // namespace lockstep::data
