#include <cmath>
#include <numbers>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"

namespace lockstep {

namespace {

// Multipliers and Weyl increments of Philox4x32 (Salmon et al. 2011, section 3.3).
constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

struct Product {
  std::uint32_t high, low;
};

Product multiply(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t product = std::uint64_t{a} * b;
  return {static_cast<std::uint32_t>(product >> 32), static_cast<std::uint32_t>(product)};
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const Product a = multiply(kMultiplier0, counter[0]);
    const Product b = multiply(kMultiplier1, counter[2]);
    counter = {b.high ^ counter[1] ^ key[0], b.low, a.high ^ counter[3] ^ key[1], a.low};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

std::uint64_t random_stream(RandomUse use, std::uint64_t number) {
  constexpr int kNumberBits = 60;
  if (number >> kNumberBits != 0)
    throw InvalidArgument("random_stream: {} is beyond the {} bits of a stream's number", number, kNumberBits);
  return static_cast<std::uint64_t>(use) << kNumberBits | number;
}

Philox::Philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t first_block) : seed_(seed), stream_(stream), block_(first_block) {}

std::uint32_t Philox::next() {
  if (used_ == 4) {
    words_ = philox4x32({static_cast<std::uint32_t>(block_), static_cast<std::uint32_t>(block_ >> 32), static_cast<std::uint32_t>(stream_),
                         static_cast<std::uint32_t>(stream_ >> 32)},
                        {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
    ++block_;
    used_ = 0;
  }
  return words_[used_++];
}

float Philox::uniform() { return static_cast<float>(next() >> 8) * 0x1p-24f; }

std::uint32_t Philox::below(std::uint32_t bound) {
  if (bound == 0) throw InvalidArgument("Philox::below: the bound must be positive");
  // Multiply and take the high half; reject the few products that would favour small results (Lemire 2019).
  Product product = multiply(next(), bound);
  if (product.low < bound) {
    const std::uint32_t threshold = -bound % bound;
    while (product.low < threshold) product = multiply(next(), bound);
  }
  return product.high;
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
