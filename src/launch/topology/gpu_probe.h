// Finds the GPUs of this machine in a separate process: the launcher forks throughout its life, so it must not load the
// driver.
#pragma once

#include <chrono>
#include <functional>

#include "src/core/device/device_choice.h"

namespace lockstep::launch {

// Runs `search` in a child process and returns its result. Throws its Error, and Error if the child crashes (a broken
// driver) or does not answer in time (a hanging GPU); it has ended then. Call it from a process without other threads.
GpuSearch search_apart(const std::function<GpuSearch()>& search,
                       std::chrono::milliseconds deadline = std::chrono::minutes(2));

// find_gpus() in that way; without a driver no process is started.
GpuSearch find_gpus_apart();

}  // namespace lockstep::launch
