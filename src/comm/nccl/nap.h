// How a thread waits between two checks of the device, or of NCCL: their own waits have no deadline.
#pragma once

#include <chrono>
#include <thread>

namespace lockstep::nccl {

// For checks of the device; `round` counts them. Sleeps from the start: each check takes the driver's lock, which the
// thread that queues the next kernels needs.
inline void nap(int round) { std::this_thread::sleep_for(std::chrono::microseconds(round < 2000 ? 50 : 1000)); }

// For checks of NCCL, which take no lock: NCCL's thread is about to queue a call, and the caller continues when that is
// done.
inline void short_nap(int round) {
  if (round < 200)
    std::this_thread::yield();
  else
    nap(round - 200);
}

}  // namespace lockstep::nccl
