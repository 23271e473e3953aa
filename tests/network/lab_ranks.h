// Runs ranks as threads, `ranks_each` on each machine of a NetworkLab. They meet in a store in memory, so that only
// their own connections use the network.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/store.h"
#include "src/comm/store/memory_store.h"
#include "tests/conformance/ranks.h"
#include "tests/network/network_lab.h"

namespace lockstep::testing {

struct LabJob {
  int ranks_each = 2;
  std::string transport = "tcp";
  bool ipv6 = false;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::chrono::milliseconds store_timeout = std::chrono::seconds(60);  // for the rendezvous
  // Called on the rank's machine; returns the store that it uses in place of the common one.
  std::function<std::shared_ptr<Store>(int rank, std::shared_ptr<Store> common, const std::string& host)> store_of = {};
};

// Returns the error of each rank's body, including that of joining.
inline std::vector<Outcome> outcomes_in(const NetworkLab& lab, const LabJob& job,
                                        const std::function<void(ProcessGroup&)>& body) {
  const int ranks = lab.machines() * job.ranks_each;
  const auto common = std::make_shared<MemoryStore>();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      outcomes[static_cast<std::size_t>(rank)] = outcome_of([&] {
        const int machine = rank / job.ranks_each;
        lab.enter(machine);
        const std::string host = job.ipv6 ? NetworkLab::address6(machine) : NetworkLab::address(machine);
        const auto store = job.store_of ? job.store_of(rank, common, host) : common;
        const auto group = ProcessGroup::create(
            {rank, ranks, rank % job.ranks_each, job.ranks_each}, store, "the lab's token",
            {.backend = "host", .transport = job.transport, .timeout = job.timeout, .store_timeout = job.store_timeout},
            host);
        body(*group);
      });
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline void run_in(const NetworkLab& lab, const LabJob& job, const std::function<void(ProcessGroup&)>& body) {
  const auto outcomes = outcomes_in(lab, job, body);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_EQ(outcomes[rank].kind, "none") << "rank " << rank << ": " << outcomes[rank].text;
}

}  // namespace lockstep::testing
