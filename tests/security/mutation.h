// Random messages, and valid ones made invalid: bits flipped, cut, repeated, extended. Seeded, so that a failure can be
// reproduced.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace lockstep::testing {

using Bytes = std::vector<std::byte>;

// LOCKSTEP_FUZZ_SEED, else a different one each time.
inline std::uint64_t fuzz_seed() {
  const char* wanted = std::getenv("LOCKSTEP_FUZZ_SEED");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }
  bool one_in(std::size_t n) { return below(n) == 0; }

  Bytes noise(std::size_t most) {
    Bytes bytes(below(most + 1));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(below(256));
    return bytes;
  }

  // Never equal to `valid`, unless that is empty.
  Bytes mutated(const Bytes& valid) {
    Bytes bytes = valid;
    if (bytes.empty()) return noise(64);
    switch (below(4)) {
      case 0:
        for (std::size_t flips = 1 + below(4); flips > 0; --flips)
          bytes[below(bytes.size())] ^= static_cast<std::byte>(1u << below(8));
        if (bytes == valid) bytes[0] ^= std::byte{1};
        break;
      case 1: bytes.resize(below(bytes.size())); break;
      case 2: bytes.insert(bytes.end(), valid.begin(), valid.end()); break;
      default: {
        const Bytes more = noise(200);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size() + 1)), more.begin(), more.end());
        if (bytes == valid) bytes.push_back(std::byte{0});
      }
    }
    return bytes;
  }

 private:
  std::mt19937_64 random_;
};

template <typename T> Bytes bytes_of(const T& value) {
  const auto* data = reinterpret_cast<const std::byte*>(&value);
  return {data, data + sizeof value};
}

}  // namespace lockstep::testing
