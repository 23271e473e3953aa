#include "src/comm/threads/thread_group.h"

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/comm/backend_context.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/host/host_backend.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/store/memory_store.h"
#if LOCKSTEP_WITH_NCCL
#include "src/comm/nccl/nccl_backend.h"
#endif

namespace lockstep {

namespace {

std::chrono::milliseconds timeout_of_threads() {
  constexpr long kLongest = 30L * 24 * 3600;
  return std::chrono::seconds(env::integer(env::kTimeout, 1, kLongest).value_or(300));
}

std::string why_no_nccl([[maybe_unused]] const Device& gpu) {
#if LOCKSTEP_WITH_NCCL
  try {
    check_gpu_and_nccl({}, &gpu);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
#else
  return "this build has no NCCL";
#endif
}

}  // namespace

// Calls and, on GPUs, the comparison of calls each have their own shared memory.
struct ThreadGroup::Rendezvous {
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::shared_ptr<host::ThreadRendezvous> calls = std::make_shared<host::ThreadRendezvous>(),
                                          comparison = std::make_shared<host::ThreadRendezvous>();

  std::unique_ptr<Backend> host_backend(const Place& place, const std::shared_ptr<host::ThreadRendezvous>& threads,
                                        std::chrono::milliseconds timeout) const {
    auto provider = std::make_unique<host::ThreadMemoryProvider>(threads);
    auto control = provider->share(host::ControlLayout::bytes(place.world_size), timeout);
    return make_host_backend(
        place, std::make_unique<host::ShmTransport>(place, std::move(provider), std::move(control)), timeout);
  }

  std::unique_ptr<Backend> gpu_backend([[maybe_unused]] const Place& place, [[maybe_unused]] Device& device,
                                       [[maybe_unused]] Backend* host,
                                       [[maybe_unused]] std::chrono::milliseconds timeout) const {
#if LOCKSTEP_WITH_NCCL
    BackendContext context;
    context.place = place;
    context.store = store;
    context.timeout = context.store_timeout = timeout;
    context.device = &device;
    context.host = host;
    return std::make_unique<NcclBackend>(context, host_backend(place, comparison, timeout), nccl::api());
#else
    return nullptr;
#endif
  }
};

std::string ThreadGroup::refusal(const std::vector<Device*>& devices) {
  if (devices.size() < 2) return "";
  std::set<std::string> gpus;
  for (const Device* device : devices) {
    if (device->kind() != devices.front()->kind())
      return fmt::format("{} and {} are devices of different kinds", devices.front()->name(), device->name());
    if (device->kind() == DeviceKind::kCuda && !gpus.insert(device->identity()).second)
      return fmt::format("{} is a part of a GPU that another device has a part of, and NCCL takes one rank for a GPU",
                         device->name());
  }
  return devices.front()->kind() == DeviceKind::kCuda ? why_no_nccl(*devices.front()) : "";
}

ThreadGroup::ThreadGroup(std::vector<Device*> devices)
    : devices_(std::move(devices)), timeout_(timeout_of_threads()), rendezvous_(std::make_unique<Rendezvous>()) {
  if (const std::string why = refusal(devices_); !why.empty()) throw InvalidArgument("group of threads: {}", why);
}
ThreadGroup::~ThreadGroup() = default;

std::shared_ptr<ProcessGroup> ThreadGroup::join(int rank) {
  const auto ranks = static_cast<int>(devices_.size());
  const Place place{rank, ranks, rank, ranks};
  Device& device = *devices_.at(static_cast<std::size_t>(rank));
  const bool on_gpu = device.kind() == DeviceKind::kCuda;
  if (ranks == 1)
    return ProcessGroup::wrap(place, make_local_backend(), timeout_, on_gpu ? make_local_backend(device) : nullptr,
                              &device);
  auto host = rendezvous_->host_backend(place, rendezvous_->calls, timeout_);
  auto gpu = on_gpu ? rendezvous_->gpu_backend(place, device, host.get(), timeout_) : nullptr;
  return ProcessGroup::wrap(place, std::move(host), timeout_, std::move(gpu), &device);
}

}  // namespace lockstep
