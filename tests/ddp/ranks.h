// Runs a function as every rank of a process group over the real host backend; the ranks are threads. In transport
// "threads", shared memory is one mapping, so that a thread sanitizer sees the accesses of all ranks; in "shm" each
// rank has its own mapping.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "lockstep/comm/process_group.h"
#include "src/comm/host/host_backend.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/store/memory_store.h"

namespace lockstep::testing {

inline std::shared_ptr<ProcessGroup> join_threads(int rank, int ranks,
                                                  const std::shared_ptr<host::ThreadRendezvous>& meeting) {
  constexpr std::chrono::seconds kTimeout{60};
  const Place place{rank, ranks, rank, ranks};
  auto fabric = std::make_unique<host::ThreadMemoryProvider>(meeting);
  auto control = fabric->share(host::ControlLayout::bytes(ranks), kTimeout);
  auto transport = std::make_unique<host::ShmTransport>(place, std::move(fabric), std::move(control));
  return ProcessGroup::wrap(place, make_host_backend(place, std::move(transport), kTimeout), kTimeout);
}

// Alternates the ranks between two nodes: shared memory within a node, TCP between them.
inline std::shared_ptr<ProcessGroup> join_nodes(int rank, int ranks, const std::shared_ptr<Store>& store) {
  constexpr std::chrono::seconds kTimeout{60};
  BackendContext context;
  context.place = {rank, ranks, rank, ranks};
  context.store = store;
  context.token = "token";
  context.transport = "auto";
  context.advertise_address = "127.0.0.1";
  context.timeout = context.store_timeout = kTimeout;
  context.node = rank % 2 == 0 ? "a" : "b";
  return ProcessGroup::wrap(context.place, make_backend("host", context), kTimeout);
}

// `transport`: "threads", "nodes", or a transport of ProcessGroupOptions. Returns each rank's exception text, "" for
// success.
inline std::vector<std::string> run_ranks(int ranks, const std::string& transport,
                                          const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  const auto meeting = std::make_shared<host::ThreadRendezvous>();
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(transport == "threads" ? join_threads(rank, ranks, meeting)
             : transport == "nodes"
                 ? join_nodes(rank, ranks, store)
                 : ProcessGroup::create(
                       {rank, ranks, rank, ranks}, store, "token",
                       {.backend = "host", .transport = transport, .timeout = std::chrono::seconds(60)}));
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

inline void expect_all_well(const std::vector<std::string>& failures) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) EXPECT_EQ(failures[rank], "") << "rank " << rank;
}

// Tests that run over transports and numbers of ranks.
class OverRanks : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 public:
  static std::string name(const ::testing::TestParamInfo<ParamType>& test) {
    return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param));
  }

 protected:
  using Body = std::function<void(std::shared_ptr<ProcessGroup>)>;
  int ranks() const { return std::get<1>(GetParam()); }
  int last() const { return ranks() - 1; }
  std::vector<std::string> failures_of(const Body& body) const {
    return run_ranks(ranks(), std::get<0>(GetParam()), body);
  }
  void run(const Body& body) const { expect_all_well(failures_of(body)); }
};

}  // namespace lockstep::testing
