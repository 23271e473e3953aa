// The position of a thread in its data. A DataLoader sets it, and a wrapper compares it between ranks.
#pragma once

#include <cstdint>

namespace lockstep {

struct BatchPosition {
  std::uint64_t pass = 0;   // a number that a loader's pass has in this process; 0: the thread is at no batch
  std::uint32_t batch = 0;  // of that pass, from 1
  int ranks = 0;            // ranks among which the sampler distributes

  bool operator==(const BatchPosition&) const = default;
};

inline thread_local BatchPosition this_threads_batch;

}  // namespace lockstep
