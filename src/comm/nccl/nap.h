// How a thread waits between two looks at the device, or at NCCL: their own waits have no deadline.
#pragma once

#include <chrono>
#include <thread>

namespace lockstep::nccl {

// Between two looks at the device, `round` of them so far. Sleeps from the start: each look takes the driver's lock,
// which the thread that queues the next kernels wants.
inline void nap(int round) { std::this_thread::sleep_for(std::chrono::microseconds(round < 2000 ? 50 : 1000)); }

// Between two looks at NCCL, which take no lock: its own thread is about to queue a call, and the caller goes on when
// that is done.
inline void short_nap(int round) {
  if (round < 200)
    std::this_thread::yield();
  else
    nap(round - 200);
}

}  // namespace lockstep::nccl
