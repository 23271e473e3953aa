// The largest magnitudes of parts of a bucket. The smallest of them is found digit by digit, by counting how often each
// digit occurs.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/reference/reference.h"
#include "kernels/magnitude.h"
#include "lockstep/reduce/compression_kernels.h"

namespace lockstep::reference {

using hooks::TopKMessages;
using hooks::TopKPart;

namespace {

// The smallest magnitude that is sent, and how many of the elements that have it.
struct LeastSent {
  std::uint32_t magnitude = 0;
  Index equals = 0;
};

LeastSent least_sent(const float* values, const TopKPart& part) {
  LeastSent least{0, part.kept};
  for (const MagnitudeDigit& digit : kMagnitudeDigits) {
    std::array<Index, kMostMagnitudeBins> counts{};
    const std::uint32_t mask = (1U << digit.bits) - 1;
    for (Index i = 0; i < part.count; ++i) {
      const std::uint32_t rest = magnitude_bits(values[i]) >> digit.shift;
      if (rest >> digit.bits == least.magnitude) ++counts[rest & mask];
    }
    std::uint32_t bin = mask;
    for (; counts[bin] < least.equals; --bin) least.equals -= counts[bin];
    least.magnitude = least.magnitude << digit.bits | bin;
  }
  return least;
}

// Stores positions and values, and the unsent rest. Values that are NaN are dropped, so that they do not return in
// every later pass.
void send_part(const TopKPart& part, const float* values, std::uint32_t* places, float* chosen) {
  LeastSent least = least_sent(values, part);
  for (Index i = 0; i < part.count; ++i) {
    const std::uint32_t magnitude = magnitude_bits(values[i]);
    const bool is_sent = magnitude > least.magnitude || (magnitude == least.magnitude && least.equals-- > 0);
    if (part.error != nullptr) part.error[i] = !is_sent && std::isfinite(values[i]) ? values[i] : 0;
    if (!is_sent) continue;
    *places++ = static_cast<std::uint32_t>(part.offset + i);
    *chosen++ = values[i];
  }
}

void select_largest(std::span<const TopKPart> parts, float* all, std::uint32_t* places, float* chosen, Stream&) {
  for (const TopKPart& part : parts) {
    float* const values = all + part.offset;
    if (part.error != nullptr)
      for (Index i = 0; i < part.count; ++i) values[i] += part.error[i];
    if (part.kept > 0) send_part(part, values, places, chosen);
    places += part.kept;
    chosen += part.kept;
  }
}

void expand_places(const TopKMessages& of, const std::byte* messages, float* values, Stream&) {
  std::fill(values, values + of.count, 0.0F);
  const float share = 1 / static_cast<float>(of.senders);
  for (Index sender = 0; sender < of.senders; ++sender) {
    const auto* const places = reinterpret_cast<const std::uint32_t*>(messages) + sender * of.kept * 2;
    const auto* const chosen = reinterpret_cast<const float*>(places + of.kept);
    for (Index k = 0; k < of.kept; ++k) values[places[k]] += share * chosen[k];
  }
}

}  // namespace

void add_top_k_kernels(KernelTable& table) {
  static constexpr hooks::TopKKernels kKernels = {.select = select_largest, .expand = expand_places};
  table.families.set(kKernels);
}

}  // namespace lockstep::reference
