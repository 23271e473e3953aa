#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/core/error.h"
#include "lockstep/core/philox.h"
#include "lockstep/tensor/random.h"

namespace lockstep {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  const PhiloxBlock block = philox_block({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {block.words[0], block.words[1], block.words[2], block.words[3]};
}

std::uint64_t random_stream(RandomUse use, std::uint64_t number) {
  constexpr int kNumberBits = 60;
  if (number >> kNumberBits != 0)
    throw InvalidArgument("random_stream: {} does not fit into the {} bits of a stream's number", number, kNumberBits);
  return static_cast<std::uint64_t>(use) << kNumberBits | number;
}

Philox::Philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t first_block)
    : seed_(seed), stream_(stream), block_(first_block) {}

std::uint32_t Philox::next() {
  if (used_ == 4) {
    const PhiloxBlock block = philox_block(seed_, stream_, block_);
    std::copy_n(block.words, words_.size(), words_.begin());
    ++block_;
    used_ = 0;
  }
  return words_[used_++];
}

float Philox::uniform() { return static_cast<float>(next() >> 8) * 0x1p-24f; }

std::uint32_t Philox::below(std::uint32_t bound) {
  if (bound == 0) throw InvalidArgument("Philox::below: the bound must be positive");
  // Multiply and take the high half; reject the few products that would favour small results (Lemire 2019).
  const auto low = [](std::uint64_t product) { return static_cast<std::uint32_t>(product); };
  std::uint64_t product = std::uint64_t{next()} * bound;
  if (low(product) < bound) {
    const std::uint32_t threshold = -bound % bound;
    while (low(product) < threshold) product = std::uint64_t{next()} * bound;
  }
  return static_cast<std::uint32_t>(product >> 32);
}

float Philox::normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_normal_;
  }
  // In double, so that a libm's last float bit does not change the weights of a seed.
  const double u = (static_cast<double>(next()) + 1) * 0x1p-32;  // (0, 1]
  const double angle = 2 * std::numbers::pi * (static_cast<double>(next()) * 0x1p-32);
  const double radius = std::sqrt(-2 * std::log(u));
  spare_normal_ = static_cast<float>(radius * std::sin(angle));
  has_spare_ = true;
  return static_cast<float>(radius * std::cos(angle));
}

}  // namespace lockstep
