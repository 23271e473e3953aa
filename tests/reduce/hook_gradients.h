// Gradients that the comm hook tests reduce, and helpers to check a hook.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <utility>
#include <vector>

#include "lockstep/core/philox.h"
#include "lockstep/reduce/reducer.h"
#include "tests/support/heap_count.h"

namespace lockstep {

// Two matrices, one tensor of more dimensions, and two one-dimensional ones; in buckets {tail, wide}, {deep, bias,
// tall}.
inline const std::vector<GradientInfo>& gradients() {
  static const std::vector<GradientInfo> all = {{.name = "tall", .count = 40 * 12, .shape = {40, 12}},
                                                {.name = "bias", .count = 40, .shape = {40}},
                                                {.name = "deep", .count = 8 * 3 * 3 * 6, .shape = {8, 3, 3, 6}},
                                                {.name = "wide", .count = 10 * 64, .shape = {10, 64}},
                                                {.name = "tail", .count = 3}};
  return all;
}
inline const BucketCaps kCaps = {2000, 100000};

// Returns a value in [-1, 1) for a rank, pass, gradient and element.
inline float number(int rank, int pass, std::size_t gradient, std::size_t i) {
  const PhiloxBlock block = philox_block(7, static_cast<std::uint64_t>(rank * 1000 + pass) * 10 + gradient, i);
  return static_cast<float>(block.words[0] >> 8) * 0x1p-23f - 1;
}

using Values = std::vector<std::vector<float>>;  // by gradient
using Source = std::function<float(int rank, int pass, std::size_t gradient, std::size_t i)>;

// Writes this rank's gradients into the reducer, runs a pass and returns the results.
inline Values reduce(Reducer& reducer, const ProcessGroup& group, int pass, const Source& source = number) {
  const auto floats = [&](std::size_t g) { return reinterpret_cast<float*>(reducer.slot(g).data()); };
  for (std::size_t g = gradients().size(); g-- > 0;) {
    for (std::size_t i = 0; i < gradients()[g].count; ++i) floats(g)[i] = source(group.rank(), pass, g, i);
    reducer.mark_ready(g);
  }
  reducer.finish();
  Values values;
  for (std::size_t g = 0; g < gradients().size(); ++g) values.emplace_back(floats(g), floats(g) + gradients()[g].count);
  return values;
}

struct Wire {
  const char* transport;
  int ranks;
};
inline void PrintTo(const Wire& wire, std::ostream* out) {
  *out << wire.transport << wire.ranks;
}  // NOLINT: GoogleTest finds it by its name

// Allocations of this thread and of the communication thread. Other threads send heartbeats meanwhile.
using Allocated = std::pair<std::size_t, std::size_t>;
inline Allocated allocated(ProcessGroup& group) {
  std::size_t there = 0;
  group.compute_async([&there](Stream&) { there = test_support::heap_allocations_by_thread(); }).wait();
  return {test_support::heap_allocations_by_thread(), there};
}

// Returns the contents of state() as bytes.
inline std::vector<std::vector<std::byte>> snapshot(const CommHook& hook) {
  std::vector<std::vector<std::byte>> all;
  for (const HookState& state : hook->state()) {
    const auto* data = static_cast<const std::byte*>(state.data);
    all.emplace_back(data, data + state.count * size_of(state.dtype));
  }
  return all;
}

}  // namespace lockstep
