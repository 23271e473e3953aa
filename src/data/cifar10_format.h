// The numbers of CIFAR-10's binary format.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::data {

inline constexpr std::int64_t kCifar10Side = 32;
inline constexpr int kCifar10Classes = 10;
inline constexpr std::size_t kCifar10RecordBytes = 1 + 3 * 32 * 32;

}  // namespace lockstep::data
