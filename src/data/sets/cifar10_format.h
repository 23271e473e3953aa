// CIFAR-10's binary format: its constants, and generated records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/cifar10.h"

namespace lockstep::data {

inline constexpr std::int64_t kCifar10Side = 32;
inline constexpr int kCifar10Classes = 10;
inline constexpr std::size_t kCifar10RecordBytes = 1 + 3 * 32 * 32;

// Returns the records of the generated set's training or test part.
std::vector<std::uint8_t> generate_cifar10(const GeneratedCifar10& what, bool train);

}  // namespace lockstep::data
