// How a thread waits between two looks at the device, or at NCCL: their own waits have no deadline.
#pragma once

#include <chrono>
#include <thread>

namespace lockstep::nccl {

// `round` counts the looks. Yields first, then sleeps for 50 us, in the end for 1 ms.
inline void nap(int round) {
  if (round < 200)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(round < 2000 ? 50 : 1000));
}

}  // namespace lockstep::nccl
