// Philox4x32-10, a counter-based random number generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011), for host and device.
#pragma once

#include <cstdint>

#include "lockstep/core/host_device.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct PhiloxBlock {
  std::uint32_t words[4];
};

// Multipliers, key increments (Weyl sequences) and number of rounds, from section 3.3 of the paper.
inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

// 128 random bits for a counter and a 64-bit key.
LOCKSTEP_HOST_DEVICE inline PhiloxBlock philox_block(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t a = std::uint64_t{kPhiloxMultiplier0} * counter.words[0],
                        b = std::uint64_t{kPhiloxMultiplier1} * counter.words[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.words[1] ^ key0, static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.words[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

// Block `number` of a stream.
LOCKSTEP_HOST_DEVICE inline PhiloxBlock philox_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t number) {
  return philox_block({{static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32),
                        static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}},
                      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

}  // namespace lockstep
#pragma GCC visibility pop
