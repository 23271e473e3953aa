// The GPUs of this machine, found out in a process of its own: the launcher forks all its life, and so keeps clear of
// the driver.
#pragma once

#include <chrono>
#include <functional>

#include "src/core/device/device_choice.h"

namespace lockstep::launch {

// Runs `search` in a child process and returns what it returns. Its Error is thrown here, and so is one when the child
// crashes (a driver that is broken) or does not answer in time (a GPU that is stuck); it is gone then. Call from a
// process without other threads.
GpuSearch search_apart(const std::function<GpuSearch()>& search,
                       std::chrono::milliseconds deadline = std::chrono::minutes(2));

// find_gpus() in that way; without a driver, from which to keep clear, no process is started for it.
GpuSearch find_gpus_apart();

}  // namespace lockstep::launch
