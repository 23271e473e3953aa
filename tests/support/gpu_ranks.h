// Ranks in threads, each with a GPU simulated by threads: a process group with the real GPU backend, on a stub of NCCL.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "lockstep/comm/process_group.h"
#include "src/comm/host/host_backend.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/nccl/nccl_backend.h"
#include "tests/conformance/table_store.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {

inline constexpr std::chrono::seconds kGpuRanksTimeout{30};

inline std::unique_ptr<Backend> ring_of_threads(const Place& place,
                                                const std::shared_ptr<host::ThreadRendezvous>& meeting) {
  auto fabric = std::make_unique<host::ThreadMemoryProvider>(meeting);
  auto control = fabric->share(host::ControlLayout::bytes(place.world_size), kGpuRanksTimeout);
  return make_host_backend(place, std::make_unique<host::ShmTransport>(place, std::move(fabric), std::move(control)),
                           kGpuRanksTimeout);
}

// Returns each rank's error, "" for those without one.
inline std::vector<std::string> run_gpu_ranks(
    int ranks, const std::function<void(std::shared_ptr<ProcessGroup>, RecordingDevice&)>& body) {
  static const nccl::Api kApi = nccl::load_api(STUB_NCCL);
  const auto store = std::make_shared<TableStore>();
  const auto calls = std::make_shared<host::ThreadRendezvous>(), watching = std::make_shared<host::ThreadRendezvous>();
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        const Place place{r, ranks, r, ranks};
        RecordingDevice device(r);
        auto cpu_backend = ring_of_threads(place, calls);
        BackendContext context;
        context.place = place;
        context.store = store;
        context.timeout = context.store_timeout = kGpuRanksTimeout;
        context.device = &device;
        auto gpu_backend = std::make_unique<NcclBackend>(context, ring_of_threads(place, watching), kApi);
        body(ProcessGroup::wrap(place, std::move(cpu_backend), kGpuRanksTimeout, std::move(gpu_backend), &device),
             device);
      } catch (const std::exception& error) {
        said[static_cast<std::size_t>(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

// A world of one, as in a program that is started without lockrun.
inline std::shared_ptr<ProcessGroup> group_of_one(RecordingDevice& device) {
  return ProcessGroup::create({0, 1, 0, 1}, std::make_shared<TableStore>(), "token", {.device = &device});
}

}  // namespace lockstep::testing
