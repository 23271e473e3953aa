// Where a thread stands in its data: a DataLoader says it, and a wrapper compares it over the ranks.
#pragma once

#include <cstdint>

namespace lockstep {

struct BatchPosition {
  std::uint64_t pass = 0;   // of a loader, a number of its own in this process; 0: the thread stands at no batch
  std::uint32_t batch = 0;  // of that pass, from 1
  int ranks = 0;            // among which the sampler deals

  bool operator==(const BatchPosition&) const = default;
};

inline thread_local BatchPosition this_threads_batch;

}  // namespace lockstep
