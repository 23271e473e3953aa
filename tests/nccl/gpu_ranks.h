// Ranks that are threads, each with a simulated GPU and the nccl backend over the stub.
#pragma once

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/host/host_backend.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/nccl/nccl_backend.h"
#include "tests/conformance/table_store.h"
#include "tests/nccl/stub_nccl.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {

inline const nccl::Api& stub_api() {
  static const nccl::Api kApi = nccl::load_api(STUB_NCCL);
  return kApi;
}
inline StubNccl& stub() {
  static void* const kLibrary = dlopen(STUB_NCCL, RTLD_NOW | RTLD_LOCAL);
  return *reinterpret_cast<StubNcclControl>(dlsym(kLibrary, "stub_nccl_control"))();
}

struct GpuRank {
  Place place;
  RecordingDevice& device;
  NcclBackend& backend;
  std::array<float, 8>& memory;  // outlives the device, whose stream may still execute a call that has failed
  std::uint64_t sequence = 0;

  Operation call(OperationKind kind, const void* send, void* receive, std::size_t count,
                 std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    Operation operation;
    operation.signature.sequence = ++sequence;
    operation.signature.kind = kind;
    operation.signature.count = count;
    operation.send = send;
    operation.receive = receive;
    operation.timeout = timeout;
    return operation;
  }
  Operation all_reduce(float* data, std::size_t count, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return call(OperationKind::kAllReduce, data, data, count, timeout);
  }
};

// Runs every rank in a thread, with its own GPU; returns each one's error as text.
inline std::vector<std::string> run_ranks(int ranks, const std::function<void(GpuRank&)>& body) {
  const auto store = std::make_shared<TableStore>();
  const auto meeting = std::make_shared<host::ThreadRendezvous>();
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      said[static_cast<std::size_t>(r)] = message_of([&] {
        const Place place{r, ranks, r, ranks};
        std::array<float, 8> memory{};
        RecordingDevice device(r);
        auto provider = std::make_unique<host::ThreadMemoryProvider>(meeting);
        auto control = provider->share(host::ControlLayout::bytes(ranks), std::chrono::seconds(20));
        auto watch = make_host_backend(
            place, std::make_unique<host::ShmTransport>(place, std::move(provider), std::move(control)),
            std::chrono::seconds(20));
        BackendContext context;
        context.place = place;
        context.store = store;
        context.timeout = context.store_timeout = std::chrono::seconds(20);
        context.device = &device;
        NcclBackend backend(context, std::move(watch), stub_api());
        GpuRank rank{place, device, backend, memory};
        body(rank);
      });
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

}  // namespace lockstep::testing
